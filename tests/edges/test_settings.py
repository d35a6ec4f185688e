"""Settings: every source, their order, secrets in files, Kubernetes' variables, and errors that name what is wrong."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr

from agents.settings import AgentSettings
from controlplane.settings import ControlPlaneSettings
from fleet.errors import InvalidInput
from fleet.process.settings import ProcessSettings, load, load_with_origins, secret_reader
from fleet.process.show import MASK, mask_url, show_settings
from headrace.settings import PROCESSES, check_everything, known_names, load_process
from regional.settings import RouterSettings


class Limits(ProcessSettings):
    """A settings model with every kind of key."""

    host: str = "127.0.0.1"
    port: int = Field(7600, ge=0, le=65535)
    controlplane: list[str] = []
    redis_url: str = ""
    router_token: str = Field("", repr=False)
    pepper: SecretStr | None = None
    timeout_idle_seconds: float = 60.0
    limits_body_bytes: int = 1024
    models: dict[str, str] = {}
    enabled: bool = False


def loaded(environ: dict[str, str] | None = None, **more: Any) -> Limits:
    return load(Limits, "router", environ=environ or {}, **more)


def refusal(environ: dict[str, str] | None = None, **more: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        loaded(environ, **more)
    assert len(caught.value.errors) == 1
    line = str(caught.value)
    assert "\n" not in line
    return line


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_flags_beat_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = write(tmp_path / "h.toml", '[router]\nport = 1\nhost = "127.0.0.2"\nenabled = true\n')
    settings = loaded(
        {"HEADRACE_ROUTER_PORT": "2", "HEADRACE_HOST": "127.0.0.3"}, config_file=file, flags={"port": 3, "host": None}
    )
    assert (settings.port, settings.host, settings.enabled, settings.timeout_idle_seconds) == (3, "127.0.0.3", True, 60)


def test_the_table_form_of_a_variable_beats_the_short_one() -> None:
    assert loaded({"HEADRACE_PORT": "1", "HEADRACE_ROUTER_PORT": "2"}).port == 2


def test_strings_become_lists_durations_sizes_and_maps() -> None:
    settings = loaded(
        {
            "HEADRACE_CONTROLPLANE": "a:1, [fd00::1]:2,",
            "HEADRACE_TIMEOUT_IDLE": "1500ms",
            "HEADRACE_LIMITS_BODY": "2MiB",
            "HEADRACE_MODELS": "a=b,c=d",
            "HEADRACE_ENABLED": "true",
        }
    )
    assert settings.controlplane == ["a:1", "[fd00::1]:2"]
    assert (settings.timeout_idle_seconds, settings.limits_body_bytes) == (1.5, 2 << 20)
    assert (settings.models, settings.enabled) == ({"a": "b", "c": "d"}, True)


def test_shared_tables_reach_nested_and_flat_models(tmp_path: Path) -> None:
    file = write(tmp_path / "h.toml", '[tls]\ncert = "/c"\nkey = "/k"\n[log]\nlevel = "debug"\n')

    class Flat(BaseModel):
        tls_cert: str = ""
        log_level: str = ""

    nested = loaded(config_file=file)
    flat = load(Flat, "router", config_file=file, environ={})
    assert (str(nested.tls.cert), nested.log.level) == ("/c", "debug")
    assert (flat.tls_cert, flat.log_level) == ("/c", "debug")
    assert str(load_process("router", environ={"HEADRACE_TLS_CA": "/a"}).settings.tls.ca) == "/a"


def test_engine_tables_of_the_contract_reach_the_agent(tmp_path: Path) -> None:
    text = '[[engine]]\nname = "llama-a"\nkind = "vllm"\nurl = "http://127.0.0.1:9001"\nmodels = {"a/B" = "b"}\n'
    agent = load_process("agent", config_file=write(tmp_path / "h.toml", text), environ={}).settings
    assert [(e.name, e.models) for e in agent.engines] == [("llama-a", {"a/B": "b"})]
    load_process("router", config_file=tmp_path / "h.toml", environ={})
    flag = load_process("agent", environ={"HEADRACE_ENGINES": "vllm=http://h:1,llamacpp=http://h:2"}).settings
    assert [e.kind for e in flag.engines] == ["vllm", "llamacpp"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HEADRACE_SERVICE_HOST", "10.0.0.1"),
        ("HEADRACE_SERVICE_PORT", "7610"),
        ("HEADRACE_SERVICE_PORT_GRPC", "7611"),
        ("HEADRACE_PORT", "tcp://10.0.0.1:7610"),
        ("HEADRACE_PORT_7610_TCP", "tcp://10.0.0.1:7610"),
        ("HEADRACE_PORT_7610_TCP_ADDR", "10.0.0.1"),
        ("HEADRACE_ROUTER_SERVICE_HOST", "10.0.0.1"),
        ("HEADRACE_ROUTER_PORT", "tcp://10.0.0.1:7600"),
        ("HEADRACE_ROUTER_PORT_7600_TCP_PROTO", "tcp"),
    ],
)
def test_variables_of_a_kubernetes_service_are_ignored(variable: str, value: str) -> None:
    assert loaded({variable: value}) == Limits()


def test_names_of_other_processes_and_empty_variables_are_left_alone() -> None:
    environ = {
        "HEADRACE_DATABASE_URL": "postgres://h/d",
        "HEADRACE_AGENT_ON_TERM": "drain",
        "HEADRACE_CONTROLPLANE_PORT": "1",
        "HEADRACE_TEST_POSTGRES_URL": "x",
        "HEADRACE_SECRET_KEY_FILE": "/run/secrets/none",
        "HEADRACE_PORT": "",
        "UNRELATED": "x",
    }
    assert loaded(environ) == Limits()


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"HEADRACE_ROUTER_PROT": "1"}, ["environment", "HEADRACE_ROUTER_PROT", "HEADRACE_PORT"]),
        ({"HEADRACE_POTR": "1"}, ["HEADRACE_POTR", "unknown"]),
        ({"HEADRACE_PORT": "70000"}, ["HEADRACE_PORT", "65535"]),
        ({"HEADRACE_PORT": "x"}, ["HEADRACE_PORT", "integer"]),
        ({"HEADRACE_TIMEOUT_IDLE": "soon"}, ["HEADRACE_TIMEOUT_IDLE", "500ms"]),
        ({"HEADRACE_LIMITS_BODY": "1.5MiB"}, ["HEADRACE_LIMITS_BODY", "32MiB"]),
        ({"HEADRACE_MODELS": "a"}, ["HEADRACE_MODELS", "name=value"]),
        ({"HEADRACE_ROUTER_TOKEN_FILE": "/does/not/exist"}, ["HEADRACE_ROUTER_TOKEN_FILE", "No such file"]),
    ],
)
def test_wrong_variables_are_named(environ: dict[str, str], words: list[str]) -> None:
    line = refusal(environ)
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[router]\nprot = 1\n", ["h.toml", "[router] prot", "did you mean port"]),
        ("[router]\nport = 70000\n", ["h.toml", "[router] port", "65535"]),
        ("[rooter]\n", ["h.toml", "[rooter]", "unknown table"]),
        ("[tls]\ncret = 1\n", ["h.toml", "tls.cret", "unknown key"]),
        ("router = 1\n", ["h.toml", "must be a table"]),
        ("[router\n", ["h.toml", "not valid TOML", "line 1"]),
        ("[router]\nport = \n", ["not valid TOML", "line 2"]),
        ("[router.tls]\ncret = 1\n", ["tls.cret", "unknown key"]),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, text: str, words: list[str]) -> None:
    line = refusal(config_file=write(tmp_path / "h.toml", text))
    assert all(word in line for word in words), line


def test_a_missing_file_a_wrong_flag_and_a_rule_over_two_settings(tmp_path: Path) -> None:
    assert "No such file" in refusal(config_file=tmp_path / "none.toml")
    assert "command line: --port" in refusal(flags={"port": 70000})
    with pytest.raises(InvalidInput, match=r"\[router\]: give fleet"):
        load_process("router", environ={"HEADRACE_CONTROLPLANE": "a:1"}, flags={"fleet": "f.yaml"})


def test_every_wrong_setting_is_named_at_once() -> None:
    with pytest.raises(InvalidInput) as caught:
        loaded({"HEADRACE_POTR": "1", "HEADRACE_TIMEOUT_IDLE": "x", "HEADRACE_HSOT": "x"})
    assert {e.pointer for e in caught.value.errors} == {"HEADRACE_POTR", "HEADRACE_TIMEOUT_IDLE", "HEADRACE_HSOT"}


def test_a_secret_may_stand_in_a_file_and_is_read_again(tmp_path: Path) -> None:
    file = write(tmp_path / "token", "first\n")
    settings = loaded({"HEADRACE_ROUTER_TOKEN_FILE": str(file)})
    read = secret_reader(settings, "router_token")
    assert (settings.router_token, read()) == ("first", "first")
    replacement = write(tmp_path / "new", "second\n")
    os.replace(replacement, file)
    assert read() == "second"
    file.unlink()
    assert read() == "second", "a secret that is being replaced stays in force"
    write(file, "")
    assert read() == "second"


def test_a_secret_in_a_toml_file_and_both_forms_at_once(tmp_path: Path) -> None:
    secret = write(tmp_path / "s", "value")
    toml = write(tmp_path / "h.toml", f'[router]\nrouter_token_file = "{secret}"\n')
    assert loaded(config_file=toml).router_token == "value"
    line = refusal({"HEADRACE_ROUTER_TOKEN": "a", "HEADRACE_ROUTER_TOKEN_FILE": str(secret)})
    assert "both set" in line
    assert secret_reader(loaded({"HEADRACE_PEPPER": "p"}), "pepper")() == "p"
    assert secret_reader(loaded(), "pepper")() == ""


def test_errors_and_shown_settings_hold_no_secret(tmp_path: Path) -> None:
    canary = "canary-4711"
    environ = {
        "HEADRACE_ROUTER_TOKEN": canary,
        "HEADRACE_PEPPER": canary,
        "HEADRACE_REDIS_URL": f"redis://user:{canary}@h:1/0?password={canary}",
    }
    result = load_with_origins(Limits, "router", environ=environ)
    shown = show_settings(result, "router")
    assert canary not in shown
    assert shown.count(MASK) == 4
    assert "redis://user:" in shown
    with pytest.raises(InvalidInput) as caught:
        load(Limits, "router", environ=environ | {"HEADRACE_ROUTER_TOKN": canary})
    assert canary not in str(caught.value)


def test_shown_settings_are_toml_and_say_where_they_come_from(tmp_path: Path) -> None:
    file = write(tmp_path / "h.toml", '[router]\nhost = "127.0.0.2"\n')
    result = load_with_origins(
        Limits, "router", config_file=file, environ={"HEADRACE_PORT": "1"}, flags={"enabled": True}
    )
    shown = show_settings(result, "router")
    assert tomllib.loads(shown)["router"]["port"] == 1
    lines = {line.split(" = ")[0]: line for line in shown.splitlines() if " = " in line}
    assert lines["host"].endswith("h.toml [router] host")
    assert lines["port"].endswith("# environment HEADRACE_PORT")
    assert lines["enabled"].endswith("# command line --enabled")
    assert lines["limits_body_bytes"].endswith("# default")


@pytest.mark.parametrize("process", PROCESSES)
def test_defaults_of_each_process_load_and_show(process: str) -> None:
    result = load_process(process, environ={})
    assert tomllib.loads(show_settings(result, process))[process]["host"] == "127.0.0.1"


def test_contract_names_are_understood_by_some_process() -> None:
    names = (
        "database_url database_direct_url redis_url controlplane routers region zone node state_dir geoip_db trusted_proxies "
        "advertise secret_key router_token join_token bootstrap_admin_token timeout_connect timeout_first_byte timeout_idle "
        "timeout_total retry_max retry_budget limits_body limits_queue limits_streams shutdown_delay shutdown_grace insecure "
        "expose xid_policy tls_cert tls_key tls_ca tls_client_ca agent_lease"
    )
    for name in names.split():
        assert name in known_names(), name


def test_one_file_for_all_processes_is_checked_whole(tmp_path: Path) -> None:
    good = write(tmp_path / "g.toml", '[router]\nregion = "eu"\n[agent]\nzone = "eu-a"\n[controlplane]\nport = 1\n')
    assert check_everything(good, {}) == []
    bad = write(tmp_path / "b.toml", '[router]\nregoin = "eu"\n[agent]\nzone = "EU"\n')
    assert {e.pointer for e in check_everything(bad, {})} == {"[router] regoin", "[agent] zone"}


@given(st.text(max_size=40), st.text(max_size=60))
def test_no_variable_gives_anything_but_settings_or_named_errors(name: str, value: str) -> None:
    variable = "HEADRACE_" + name.upper()
    errors = []
    try:
        loaded({variable: value})
    except InvalidInput as error:
        errors = error.errors
    assert all(e.pointer == variable for e in errors)


@given(st.text(max_size=200))
def test_no_file_gives_anything_but_settings_or_named_errors(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "h.toml"
        file.write_text(text, "utf-8", errors="surrogatepass")
        errors = []
        try:
            loaded(config_file=file)
        except InvalidInput as error:
            errors = error.errors
        assert all(e.source == str(file) for e in errors)


def test_urls_are_masked_and_otherwise_kept() -> None:
    assert mask_url("postgres://u:p@h:5432/d") == f"postgres://u:{MASK}@h:5432/d"
    assert mask_url("redis://:p@h") == f"redis://:{MASK}@h"
    assert mask_url("http://h/x?token=abc&y=1") == f"http://h/x?token={MASK}&y=1"
    assert mask_url("http://h:1/") == "http://h:1/"


@pytest.mark.parametrize("model", [ControlPlaneSettings, RouterSettings, AgentSettings])
def test_case_w05_an_ipv6_host_may_be_written_as_before_a_port(model: type[ProcessSettings]) -> None:
    needed = {"routers": ["[::1]:7601"], "zone": "z"} if model is AgentSettings else {}
    assert model.model_validate({"host": "[::1]", **needed}).host == "::1"
    assert model.model_validate({"host": "::1", **needed}).host == "::1"
