"""What the documents promise: commands and options exist, links lead somewhere, examples run."""

from __future__ import annotations

import random
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer.main

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def fenced(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.M | re.S)


def commands() -> list[tuple[str, str]]:
    found = []
    for path in DOCUMENTS:
        text = path.read_text()
        lines = [line for block in fenced(path, "sh") for line in block.splitlines()]
        inline = re.findall(r"`((?:headrace|make) [^`]+)`", text)
        for line in lines + inline:
            line = re.sub(r"\s+#.*", "", line.strip())
            if re.match(r"(headrace|make) [a-z-]", line) and "|" not in line and "KIND/NAME" not in line:
                found.append((path.name, line))
    return found


def test_documents_name_commands() -> None:
    assert len(commands()) > 15


@pytest.mark.parametrize(("document", "line"), commands(), ids=lambda v: v[:60])
def test_commands_in_documents_exist(document: str, line: str) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M)
        assert words[1] in targets
        return
    from headrace.cli.main import build

    command = typer.main.get_command(build())
    rest = words[1:]
    context = command.make_context("headrace", ["version"], resilient_parsing=True)
    while rest and hasattr(command, "commands"):
        assert rest[0] in command.commands, f"{document}: no command {rest[0]!r}"
        command = command.commands[rest.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in rest:
        if word.startswith("-"):
            assert word.split("=")[0] in known, f"{document}: {line}: no option {word}"
    assert context is not None


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text())
    missing = [t for t in targets if "://" not in t and not (path.parent / t).exists()]
    assert not missing


def test_environment_variables_in_documents_exist() -> None:
    sources = subprocess.run(
        ["git", "grep", "-hoE", r"HEADRACE_[A-Z_]+|[a-z_]+:", "--", "*/settings.py", "fleet/process", "headrace/cli"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    fields = {f.rstrip(":").upper() for f in sources.split()}
    for path in DOCUMENTS:
        for name in set(re.findall(r"HEADRACE_([A-Z_]+[A-Z])", path.read_text())):
            short = name.removesuffix("_FILE")
            known = {
                short,
                f"HEADRACE_{short}",
                *(short.removeprefix(f"{t}_") for t in ("ROUTER", "AGENT", "CONTROLPLANE")),
            }
            assert known & fields or short.startswith("TEST_"), f"{path.name}: HEADRACE_{name}"


def test_the_policy_of_the_guide_works() -> None:
    """Three equal endpoints and three requests: by fewest in flight, each gets one."""
    from regional.fleetview.view import FleetView
    from regional.request.core import Core
    from regional.request.steps import SendToEndpoint
    from regional.routing.registry import builtin
    from tests.regional_decisions import fleets

    scope: dict[str, object] = {}
    exec(compile(fenced(ROOT / "docs/writing-a-policy.md", "python")[0], "guide", "exec"), scope)  # noqa: S102
    core = Core(FleetView("eu-west"), random.Random(1), registry={**builtin(), "fair-share": scope["FairShare"]})
    rig = fleets.Rig(core)
    core.view.set_intent(fleets.intent(policies=fleets.policy("fair-share", nearly=0.2)), rig.now)
    for name in ("a1", "a2", "a3"):
        rig.report(f"node-{name}", [fleets.endpoint(name, [f"GPU-{name}"])], gpus=[fleets.gpu(f"GPU-{name}")])
    rig.beat(30.0)
    chosen = []
    for i in range(3):
        _, step = core.begin(fleets.facts(f"q{i}"), rig.now, fleets.no_revoke)
        assert isinstance(step, SendToEndpoint)
        chosen.append(step.target.uid)
    assert len(set(chosen)) == 3
