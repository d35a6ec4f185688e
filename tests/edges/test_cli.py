"""The command line against a real control plane over SQLite: what it does, what it prints, how it fails."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.process.serve import bind
from headrace.cli.main import run
from headrace.cli.output import COLUMNS
from tests.edges.processes import Process, wait_ready

BOOTSTRAP = "bootstrap-token-0123456789"
FLEET = """
kind: region
name: eu-west
labels: {tier: core}
spec: {latitude: 53.35, longitude: -6.26, jurisdictions: [IE, EU]}
---
kind: region
name: us-east
spec: {latitude: 38.9, longitude: -77.4, jurisdictions: [US]}
---
kind: zone
name: eu-west-a
labels: {tier: core}
spec: {region: eu-west}
---
kind: node
name: n1
spec: {zone: eu-west-a, gpus: [{product: h100-sxm-80, count: 2}]}
---
kind: model
name: llama
---
kind: tenant
name: acme
---
kind: key
name: acme-1
spec: {tenant: acme, secret: "${ACME_KEY}"}
"""


@dataclass
class ControlPlane:
    url: str
    grpc_port: int
    process: Process


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    state = tmp_path_factory.mktemp("controlplane")
    process = Process(
        ["controlplane", "--port", "0", "--grpc-port", "0", "--state-dir", str(state)],
        {"HEADRACE_BOOTSTRAP_ADMIN_TOKEN": BOOTSTRAP, "HEADRACE_GEOIP_DB": str(_SHIPPED)},
    )
    grpc_port = process.port("grpc")  # told first
    url = f"http://127.0.0.1:{process.port('http')}"
    wait_ready(url, process)
    yield ControlPlane(url, grpc_port, process)
    assert process.stop() == 0, process.log()
    assert "Traceback" not in "\n".join(process.lines)


_SHIPPED = Path(__file__).parents[2] / "fleet" / "geo" / "data" / "demo.mmdb"


@dataclass
class Shell:
    """Runs commands in this process with an environment of its own."""

    capture: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, *arguments: str, stdin: str | None = None) -> tuple[int, str, str]:
        if stdin is not None:
            self.monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        self.capture.readouterr()
        status = run(arguments)
        out, err = self.capture.readouterr()
        assert "Traceback" not in out + err
        return status, out, err

    def ok(self, *arguments: str, stdin: str | None = None) -> str:
        status, out, err = self(*arguments, stdin=stdin)
        assert status == 0, err
        return out

    def fails(self, status: int, *arguments: str, stdin: str | None = None) -> str:
        """The one line on standard error."""
        got, _, err = self(*arguments, stdin=stdin)
        assert got == status, err
        assert err.startswith("headrace: ")
        assert err.count("\n") == 1, err
        return err


@pytest.fixture
def bare(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    """A shell without a control plane."""
    for name in [n for n in os.environ if n.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return Shell(capsys, monkeypatch)


@pytest.fixture
def shell(bare: Shell, control_plane: ControlPlane, tmp_path: Path) -> Shell:
    bare.monkeypatch.setenv("HEADRACE_SERVER", control_plane.url)
    bare.monkeypatch.setenv("HEADRACE_TOKEN", BOOTSTRAP)
    bare.monkeypatch.setenv("ACME_KEY", "acme-secret-1")
    (tmp_path / "fleet.yaml").write_text(FLEET)
    return bare


# Declarative


def test_apply_makes_what_the_file_says_once(shell: Shell) -> None:
    status, out, _ = shell("diff", "-f", "fleet.yaml")
    assert status in (0, 1)
    shell.ok("apply", "-f", "fleet.yaml")
    assert all(line.endswith(" unchanged") for line in shell.ok("apply", "-f", "fleet.yaml").splitlines())
    assert shell("diff", "-f", "fleet.yaml")[0] == 0
    changed = FLEET.replace("53.35", "54")
    status, out, _ = shell("diff", "-f", "-", stdin=changed)
    assert (status, out) == (1, "region/eu-west changed\n  /spec/latitude: 53.35 -> 54.0\n")
    assert "region/eu-west changed (dry run)" in shell.ok("apply", "--dry-run", "-f", "-", stdin=changed)
    assert shell("diff", "-f", "fleet.yaml")[0] == 0, "a dry run changes nothing"


def test_prune_deletes_only_what_the_selector_matches(shell: Shell) -> None:
    shell.ok("apply", "-f", "fleet.yaml")
    more = "kind: zone\nname: eu-west-b\nlabels: {tier: spare}\nspec: {region: eu-west}\n"
    shell.ok("apply", "-f", "-", stdin=more)
    out = shell.ok("apply", "--prune", "-l", "tier=spare", "-f", "fleet.yaml")
    assert [line for line in out.splitlines() if "deleted" in line] == ["zone/eu-west-b deleted"]
    assert "--prune wants a selector" in shell.fails(2, "apply", "--prune", "-f", "fleet.yaml")


def test_get_in_every_form(shell: Shell) -> None:
    shell.ok("apply", "-f", "fleet.yaml")
    table = shell.ok("get", "regions")
    assert table.splitlines()[0].split()[:2] == ["NAME", "ROUTER"]
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["eu-west", "us-east"]
    assert "UID" in shell.ok("get", "region", "-o", "wide")
    assert json.loads(shell.ok("get", "zone/eu-west-a", "-o", "json"))["spec"]["region"] == "eu-west"
    assert len(json.loads(shell.ok("get", "regions", "-l", "tier=core", "-o", "json"))["items"]) == 1
    shown = list(yaml.safe_load_all(shell.ok("get", "nodes", "-o", "yaml")))
    assert [d["name"] for d in shown] == ["n1"]
    assert "acme-secret-1" not in shell.ok("get", "keys", "-o", "json")
    assert shell("get", "gpus")[2] == "no gpus\n"


@pytest.mark.parametrize(("plural", "kind"), [("nodes", "Ready"), ("endpoints", "Reachable")])
def test_the_state_of_what_nobody_sees_now_is_unknown(plural: str, kind: str) -> None:
    [read] = [read for title, read in COLUMNS[plural] if title == "STATE"]

    def seen(status: str) -> dict[str, Any]:
        return {"status": {"observed": {"state": "ready"}, "conditions": [{"type": kind, "status": status}]}}

    assert (read(seen("True")), read(seen("Unknown")), read({"status": {"observed": {}}})) == ("ready", "unknown", None)


def test_what_get_prints_can_be_applied_again(shell: Shell) -> None:
    shell.ok("apply", "-f", "fleet.yaml")
    for kind in ("regions", "zones", "nodes", "models", "tenants"):
        printed = shell.ok("get", kind, "-o", "yaml")
        out = shell.ok("apply", "-f", "-", stdin=printed)
        assert all(line.endswith(" unchanged") for line in out.splitlines()), out


def test_describe_delete_and_references(shell: Shell) -> None:
    shell.ok("apply", "-f", "fleet.yaml")
    shell.ok("apply", "-f", "-", stdin="kind: model\nname: gone\n")
    assert "name: n1" in shell.ok("describe", "node/n1")
    refused = shell.fails(1, "delete", "tenant", "acme")
    assert refused.endswith("delete those first, or use --cascade\n")
    assert refused.count("refer") == 2, "each reference is named once"
    assert shell.ok("delete", "model/gone") == "model/gone deleted\n"
    assert "no such thing" in shell.fails(1, "get", "model", "gone")
    assert "say which" in shell.fails(2, "delete", "models")


def test_watch_prints_changes_until_the_resource_is_gone(shell: Shell, control_plane: ControlPlane) -> None:
    shell.ok("apply", "-f", "-", stdin="kind: model\nname: watched\n")
    child = subprocess.Popen(
        [sys.executable, "-m", "headrace", "get", "model", "watched", "-w", "-o", "json"],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    try:
        line = child.stdout.readline()
        assert line.startswith("{")
        shell.ok("apply", "-f", "-", stdin="kind: model\nname: watched\nspec: {aliases: [watched-4096]}\n")
        ends = time.monotonic() + 30
        while "4096" not in line and time.monotonic() < ends:
            line = child.stdout.readline()
        assert "4096" in line
        shell.ok("delete", "model/watched")
        out, _ = child.communicate(timeout=30)
        assert out.endswith("watched deleted\n")
        assert child.returncode == 0
    finally:
        child.kill()
        child.communicate()


# Actions and looking


def test_cordon_drain_and_uncordon(shell: Shell) -> None:
    shell.ok("apply", "-f", "fleet.yaml")

    def held() -> dict[str, str]:
        conditions = json.loads(shell.ok("get", "node/n1", "-o", "json"))["status"]["conditions"]
        return {c["type"]: c["status"] for c in conditions if c["type"] in ("Cordoned", "Draining")}

    assert shell.ok("cordon", "n1", "--reason", "kernel") == "n1 cordoned\n"
    assert held() == {"Cordoned": "True", "Draining": "False"}
    assert shell.ok("drain", "node/n1") == "node/n1 draining\n"
    assert held()["Draining"] == "True"
    assert shell.ok("drain", "node/n1", "--wait") == "node/n1 drained\n", "nothing runs on a node without endpoints"
    assert shell.ok("uncordon", "nodes/n1") == "nodes/n1 uncordoned\n"
    assert held() == {"Cordoned": "False", "Draining": "False"}
    waited = shell("drain", "zone/eu-west-a", "--wait", "--deadline", "0s")
    assert waited[0] == 1
    assert "not known what runs there" in waited[2]
    shell.ok("drain", "zone/eu-west-a", "--abort")
    assert "must be KIND/NAME" in shell.fails(2, "cordon", "tenant/acme")
    assert "--deadline" in shell.fails(2, "drain", "n1", "--wait", "--deadline", "soon")


def test_events_audit_and_locate(shell: Shell) -> None:
    shell.ok("apply", "-f", "fleet.yaml")
    shell.ok("cordon", "n1", "--reason", "looked for")
    assert "looked for" in shell.ok("events", "--of", "node/n1")
    assert "looked for" not in shell.ok("events", "--of", "region")
    audit = json.loads(shell.ok("audit", "--action", "cordon", "-o", "json"))["items"]
    assert {entry["action"] for entry in audit} == {"cordon"}
    shell.ok("uncordon", "n1")
    assert "must be an IPv4 or IPv6 address" in shell.fails(1, "locate", "nowhere")
    table = shell.ok("locate", "127.33.0.1")
    assert "FR" in table
    assert table.index("eu-west") < table.index("us-east")
    assert json.loads(shell.ok("locate", "::ffff:127.101.0.1", "-o", "json"))["origin"]["country"] == "US"
    assert json.loads(shell.ok("locate", "192.168.0.1", "-o", "json"))["origin"]["source"] == "private"


# Access


def test_keys_and_tokens_are_shown_once_and_revoked(shell: Shell) -> None:
    shell.ok("apply", "-f", "fleet.yaml")
    secret = shell.ok("key", "create", "k2", "--tenant", "acme", "--model", "llama", "--expires", "90d").strip()
    assert secret.startswith("hr_")
    assert secret not in shell.ok("key", "list", "-o", "json")
    assert shell.ok("key", "revoke", "k2") == "key/k2 revoked\n"
    viewer = shell.ok("token", "create", "look", "--role", "viewer").strip()
    shell.ok("token", "create", "eu-routers", "--role", "router", "--region", "eu-west")
    shell.ok("token", "create", "joiners", "--role", "join", "--zone", "eu-west-*", "--uses", "3", "--expires", "1h")
    listed = shell.ok("token", "list")
    assert all(name in listed for name in ("look", "eu-routers", "joiners"))
    shell.monkeypatch.setenv("HEADRACE_TOKEN", viewer)
    shell.ok("get", "regions")
    assert "may not" in shell.fails(1, "delete", "model/llama")
    shell.monkeypatch.setenv("HEADRACE_TOKEN", BOOTSTRAP)
    for name in ("look", "eu-routers", "joiners"):
        shell.ok("token", "revoke", name)
    assert "there is no token look" in shell.fails(1, "token", "revoke", "look")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("token", "create", "x", "--role", "king"), "--role must be one of"),
        (("token", "create", "x", "--role", "router"), "--region is wanted"),
        (("token", "create", "x", "--role", "viewer", "--zone", "z"), "go with role join"),
        (("token", "create", "x", "--role", "join", "--region", "r"), "--region goes with role router"),
        (("key", "create", "x", "--tenant", "acme", "--expires", "soon"), "--expires must be"),
    ],
)
def test_wrong_token_options_are_usage_errors(bare: Shell, arguments: tuple[str, ...], words: str) -> None:
    assert words in bare.fails(2, *arguments)


def test_a_wrong_token_is_refused_in_one_line_that_does_not_show_it(shell: Shell) -> None:
    shell.monkeypatch.setenv("HEADRACE_TOKEN", "wrong-token-canary")
    line = shell.fails(1, "get", "regions")
    assert "token" in line
    assert "canary" not in line
    shell.monkeypatch.delenv("HEADRACE_TOKEN")
    shell.fails(1, "apply", "-f", "fleet.yaml")
    assert shell("diff", "-f", "fleet.yaml")[0] == 3


def test_login_keeps_a_token_for_its_own_server_only(shell: Shell, control_plane: ControlPlane, tmp_path: Path) -> None:
    shell.monkeypatch.delenv("HEADRACE_TOKEN")
    shell.monkeypatch.delenv("HEADRACE_SERVER")
    shell.fails(1, "login", control_plane.url, stdin="wrong-token\n")
    assert shell("context", "list")[2].startswith("no contexts")
    shell.ok("login", control_plane.url, "--name", "here", stdin=f"{BOOTSTRAP}\n")
    file = tmp_path / "config" / "headrace" / "config.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    assert tomllib.loads(file.read_text())["contexts"]["here"]["token"] == BOOTSTRAP
    shell.ok("get", "regions")
    assert BOOTSTRAP not in shell.ok("context", "list")
    with bind("127.0.0.1", 0) as other:
        other.settimeout(20)
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
        child = subprocess.Popen(
            [sys.executable, "-m", "headrace", "get", "regions", "--server", url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        connection, _ = other.accept()
        connection.settimeout(20)
        request = connection.recv(65536)
        connection.close()
        child.wait(30)
    assert request.startswith(b"GET /api/v1/regions")
    assert b"authorization" not in request.lower()
    shell.ok("context", "delete", "here")
    assert "no context here" in shell.fails(1, "context", "use", "here")
    file.write_text("broken [")
    assert "not valid TOML" in shell.fails(1, "get", "regions")


# Wrong input


def test_a_broken_fleet_file_changes_nothing_and_names_its_lines(shell: Shell) -> None:
    shell.ok("apply", "-f", "fleet.yaml")
    before = shell.ok("get", "regions", "-o", "json")
    status, _, err = shell(
        "apply", "-f", "-", stdin=FLEET + "---\nkind: region\nname: x\nspec:\n  latitud: 1\n  y: 2\n"
    )
    assert status == 1
    line = FLEET.count("\n") + 5
    assert err == (
        f"headrace: standard input:{line}: /spec/latitud: unknown field\n"
        f"headrace: standard input:{line + 1}: /spec/y: unknown field\n"
    )
    assert "no zone nowhere" in shell.fails(1, "apply", "-f", "-", stdin="kind: node\nname: x\nspec: {zone: nowhere}\n")
    assert shell.ok("get", "regions", "-o", "json") == before
    assert "No such file" in shell.fails(1, "apply", "-f", "none.yaml")
    assert "no document" in shell.fails(1, "apply", "-f", "-", stdin="# empty\n")
    shell.monkeypatch.delenv("ACME_KEY")
    assert "ACME_KEY is not set" in shell.fails(1, "apply", "-f", "fleet.yaml")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bogus",), "No such command"),
        (("get",), "Missing argument"),
        (("get", "bogus"), "unknown kind 'bogus'"),
        (("get", "node/a", "b"), "one too many"),
        (("get", "nodes", "--bogus"), "No such option"),
        (("get", "nodes", "-o", "xml"), "xml"),
        (("router", "--port", "x"), "--port"),
        (("demo", "--engine", "x"), "--engine must be"),
        (("completion", "x"), "unknown shell"),
        (("config", "show", "x"), "unknown process"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(bare: Shell, arguments: tuple[str, ...], words: str) -> None:
    assert words in bare.fails(2, *arguments)


def test_a_server_that_is_not_there_or_not_ours(bare: Shell) -> None:
    with bind("127.0.0.1", 0) as closed:
        port = closed.getsockname()[1]
    assert "cannot reach the control plane" in bare.fails(1, "get", "nodes", "--server", f"http://127.0.0.1:{port}")
    assert "not an address" in bare.fails(1, "get", "nodes", "--server", "ftp://[x")
    bare.monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert str(port) in bare.fails(1, "get", "nodes", "--server", f"http://127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("command", "environ", "words"),
    [
        (["router", "--region", "EU!"], {}, "--region"),
        (["router"], {"HEADRACE_ROUTER_PROT": "1"}, "HEADRACE_ROUTER_PROT"),
        (["controlplane", "--config", "none.toml"], {}, "No such file"),
        (["agent"], {"HEADRACE_AGENT_DEVICES": "tpu"}, "HEADRACE_AGENT_DEVICES"),
        (["db", "current"], {"HEADRACE_DATABASE_URLS": "x"}, "HEADRACE_DATABASE_URLS"),
    ],
)
def test_wrong_settings_are_one_line_and_status_2(
    bare: Shell, command: list[str], environ: dict[str, str], words: str
) -> None:
    for name, value in environ.items():
        bare.monkeypatch.setenv(name, value)
    assert words in bare.fails(2, *command)


# Processes


def end_of(arguments: list[str], environ: dict[str, str]) -> tuple[int, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        env=inherited | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert "Traceback" not in done.stderr
    return done.returncode, "\n".join(lines)


@pytest.mark.parametrize("which", ["--port", "--grpc-port"])
def test_a_taken_port_is_one_line_and_status_1(tmp_path: Path, which: str) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        ports = {"--port": "0", "--grpc-port": "0"} | {which: port}
        arguments = ["controlplane", "--state-dir", str(tmp_path), *(part for pair in ports.items() for part in pair)]
        status, said = end_of(arguments, {})
    assert status == 1
    assert said == (
        f"headrace: 127.0.0.1:{port} is taken by another process; choose another port with {which} or stop the other"
    )


def test_off_loopback_without_tls_a_process_refuses_to_start(tmp_path: Path) -> None:
    status, said = end_of(["controlplane", "--host", "0.0.0.0", "--port", "0", "--state-dir", str(tmp_path)], {})
    assert status == 1
    assert "HEADRACE_INSECURE=true" in said
    assert said.count("\n") == 0


def test_interrupt_ends_a_process_in_good_order(tmp_path: Path) -> None:
    process = Process(["controlplane", "--port", "0", "--grpc-port", "0", "--state-dir", str(tmp_path)], {})
    wait_ready(f"http://127.0.0.1:{process.port('http')}", process)
    process._child.send_signal(signal.SIGINT)
    assert process._child.wait(30) == 0, process.log()
    process.stop()


def test_migrations_from_the_command_line(bare: Shell, tmp_path: Path) -> None:
    bare.monkeypatch.setenv("HEADRACE_DATABASE_URL", f"sqlite:///{tmp_path}/db.sqlite3")
    status, out, _ = bare("db", "current")
    assert status == 1
    assert out.startswith("no tables")
    revision = bare.ok("db", "upgrade").split()[1]
    assert bare.ok("db", "current").strip() == revision
    first = int(bare.ok("db", "restored").split()[1])
    assert int(bare.ok("db", "restored").split()[1]) > first
    assert bare.ok("db", "downgrade", "base") == "at no tables\n"


def test_show_config_masks_secrets(bare: Shell) -> None:
    bare.monkeypatch.setenv("HEADRACE_ROUTER_TOKEN", "canary-router-token")
    shown = bare.ok("router", "--region", "eu-west", "--show-config")
    assert "canary" not in shown
    assert tomllib.loads(shown)["router"]["region"] == "eu-west"
    assert bare.ok("config", "show", "router").count("********") == 1


def test_config_validate_looks_at_every_process(bare: Shell, tmp_path: Path) -> None:
    (tmp_path / "h.toml").write_text('[router]\nregoin = "x"\n[agent]\nport = -1\n')
    status, _, err = bare("config", "validate", "--config", "h.toml")
    assert status == 1
    assert err.splitlines() == [
        "headrace: h.toml: [router] regoin: unknown key; did you mean region?",
        "headrace: h.toml: [agent] port: must be greater than or equal to 0",
    ]
    (tmp_path / "h.toml").write_text('[router]\nregion = "x"\n')
    assert bare.ok("config", "validate", "--config", "h.toml") == "ok\n"


def test_check_says_a_line_for_each_thing(bare: Shell, control_plane: ControlPlane, tmp_path: Path) -> None:
    status, out, _ = bare("check", "controlplane")
    assert "ok      settings" in out
    assert status in (0, 1), "the default ports may be taken on this machine"
    bare.monkeypatch.setenv("HEADRACE_GEOIP_DB", str(tmp_path / "none.mmdb"))
    bare.monkeypatch.setenv("HEADRACE_ROUTERS", "127.0.0.1:1")
    status, out, _ = bare("check", "router")
    assert status == 1
    assert "FAILED  geo database" in out
    assert "FAILED  intent" in out
    (tmp_path / "h.toml").write_text('[agent]\ndevices = "simulated:2xh100-sxm-80"\nzone = "z"\nport = 0\n')
    status, out, _ = bare("check", "agent", "--config", "h.toml")
    assert "ok      devices: 2 devices" in out
    assert {line[:8] for line in out.splitlines()} <= {"ok      ", "note    ", "FAILED  "}
    _, out, _ = bare("check", "agent")
    assert {line[:8] for line in out.splitlines()} <= {"ok      ", "note    ", "FAILED  "}, (
        "no log between, without NVML too"
    )
    assert "FAILED  router 127.0.0.1:1" in out


def test_check_tries_a_router_token(shell: Shell, control_plane: ControlPlane) -> None:
    shell.ok("apply", "-f", "fleet.yaml")
    token = shell.ok("token", "create", "checked", "--role", "router", "--region", "eu-west").strip()
    shell.monkeypatch.setenv("HEADRACE_CONTROLPLANE", f"127.0.0.1:{control_plane.grpc_port}")
    shell.monkeypatch.setenv("HEADRACE_REGION", "eu-west")
    for given, expected in ((token, "ok      token at"), ("wrong-canary-token", "FAILED  token at")):
        shell.monkeypatch.setenv("HEADRACE_ROUTER_TOKEN", given)
        out = shell("check", "router")[1]
        assert expected in out, out
        assert given not in out
    shell.monkeypatch.setenv("HEADRACE_TOKEN", BOOTSTRAP)
    shell.ok("token", "revoke", "checked")


# The command itself


def test_help_names_every_command_of_this_release() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "-h"], capture_output=True, text=True, check=True, timeout=60
    )
    commands = (
        "controlplane router agent demo check db apply diff get describe delete watch cordon uncordon drain events audit gpus "
        "locate key token login context config completion version"
    )
    for command in commands.split():
        assert f"\n  {command} " in done.stdout, command


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom headrace.cli.main import run\nrun(['--help'])\n"
        "heavy = {'grpc', 'sqlalchemy', 'fastapi', 'uvicorn', 'numpy', 'redis', 'pydantic', 'yaml', 'rich', 'httpx2', 'aiohttp'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.strip() == "[]"


def test_version_and_completion(bare: Shell) -> None:
    assert bare.ok("version").startswith("headrace 0.")
    for shell in ("bash", "zsh", "fish"):
        assert "_HEADRACE_COMPLETE" in bare.ok("completion", shell)
    done = subprocess.run(
        [sys.executable, "-c", "from headrace.cli.main import main; main()"],
        env={**os.environ, "_HEADRACE_COMPLETE": "complete_bash", "COMP_WORDS": "headrace cor", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.strip() == "cordon"


def test_output_to_a_closed_pipe_is_quiet() -> None:
    script = f"{sys.executable} -m headrace config show router | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
