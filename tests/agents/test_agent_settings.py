"""Settings of the agent as users write them: environment, TOML, flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.accelerators.open import open_accelerators
from agents.accelerators.simulated import SimulatedDevices
from agents.settings import AgentSettings, node_name
from fleet.endpoint import EngineKind
from fleet.errors import InvalidInput
from fleet.process.settings import load, secret_reader


def test_from_the_environment() -> None:
    environ = {
        "HEADRACE_ROUTERS": "router-1:7601,[fd00::1]:7601",
        "HEADRACE_ZONE": "eu-west-a",
        "HEADRACE_NODE": "n1",
        "HEADRACE_STATE_DIR": "/var/lib/headrace",
        "HEADRACE_JOIN_TOKEN": "hr_token",
        "HEADRACE_ADVERTISE": "10.2.3.4",
        "HEADRACE_ENGINES": "vllm=http://127.0.0.1:9001,llamacpp=http://127.0.0.1:9002",
        "HEADRACE_AGENT_DEVICES": "simulated:4xh100-sxm-80,4xa100-sxm-80",
        "HEADRACE_AGENT_ON_TERM": "drain",
        "HEADRACE_AGENT_INTERVAL": "250ms",
        "HEADRACE_XID_POLICY": "13=out,94=out:3/60",
    }
    settings = load(AgentSettings, "agent", environ=environ)
    assert settings.routers == ["router-1:7601", "[fd00::1]:7601"]
    assert (settings.zone, settings.node, settings.on_term) == ("eu-west-a", "n1", "drain")
    assert settings.interval_seconds == 0.25
    assert [(e.name, e.kind) for e in settings.engines] == [
        ("vllm-9001", EngineKind.VLLM),
        ("llamacpp-9002", EngineKind.LLAMACPP),
    ]
    assert settings.xid.rule(94).after == 3
    assert "hr_token" not in repr(settings)


def test_engine_tables_and_a_token_file(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    config = tmp_path / "agent.toml"
    config.write_text(
        """
[agent]
zone = "z"
[[engine]]
name = "llama-a"
kind = "vllm"
url = "http://127.0.0.1:9001"
advertise = "http://10.2.3.4:9001"
gpus = ["0", "1", "2", "3"]
models = {"meta-llama/Llama-3.1-8B-Instruct" = "llama-3.1-8b"}
tensor_parallel = 4
"""
    )
    settings = load(AgentSettings, "agent", config_file=config, environ={"HEADRACE_JOIN_TOKEN_FILE": str(token)})
    engine = settings.engines[0]
    assert (engine.name, engine.gpus, engine.tensor_parallel) == ("llama-a", ["0", "1", "2", "3"], 4)
    assert engine.models == {"meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b"}
    read = secret_reader(settings, "join_token")
    assert read() == "first"
    token.write_text("second token\n")
    assert read() == "second token"


@pytest.mark.parametrize(("host", "name"), [("GPU_Box-7.Example", "gpu-box-7.example"), ("a", "a"), ("___", "node")])
def test_the_host_name_becomes_a_resource_name(host: str, name: str) -> None:
    assert node_name(host) == name


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"HEADRACE_AGENT_DEVICES": "cuda"}, "nvml, none"),
        ({"HEADRACE_AGENT_DEVICES": "simulated:"}, "COUNTxPRODUCT"),
        ({"HEADRACE_ENGINES": "vllm"}, "KIND=URL"),
        ({"HEADRACE_ENGINES": "vllm=127.0.0.1:9"}, "http://host"),
        ({"HEADRACE_ENGINES": "vllm=http://a:9,vllm=http://b:9"}, "unique"),
        ({"HEADRACE_XID_POLICY": "79=explode"}, "79=explode"),
        ({"HEADRACE_AGENT_ON_TERM": "explode"}, "on_term"),
        ({"HEADRACE_AGENT_INTERVL": "1"}, "HEADRACE_AGENT_INTERVL"),
        ({"HEADRACE_ZONE": "Not A Zone"}, "zone"),
    ],
)
def test_wrong_values_are_named(environ: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load(AgentSettings, "agent", environ=environ)
    assert named.lower() in str(caught.value).lower()


def test_simulated_devices_are_the_same_on_the_same_node() -> None:
    first, again = (SimulatedDevices("2xh100-sxm-80,1xl4-24", node="n1") for _ in range(2))
    assert first.uuids == again.uuids
    assert len(set(first.uuids)) == 3
    assert not set(first.uuids) & set(SimulatedDevices("3xl4-24", node="n2").uuids)
    with pytest.raises(InvalidInput, match="64"):
        SimulatedDevices("65xl4-24")
    with pytest.raises(KeyError):
        first.inject_xid("GPU-x", 79)


def test_one_look_for_checks() -> None:
    look = open_accelerators(AgentSettings.embedded(devices="simulated:2xl4-24")).read()
    assert (len(look.devices), look.error) == (2, "")
    dcgm = open_accelerators(AgentSettings.embedded(devices="dcgm:http://127.0.0.1:1")).read()
    assert "does not answer" in dcgm.error
