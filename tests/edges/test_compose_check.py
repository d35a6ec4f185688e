"""docker-compose.yml names only what exists, and the check would notice if it did not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()


def check(*arguments: str) -> tuple[int, str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("HEADRACE_", "DOCKER_"))}
    done = subprocess.run(
        [sys.executable, "deploy/compose_check.py", *arguments],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr + done.stdout


def test_the_compose_file_names_only_what_exists() -> None:
    assert check() == (0, "docker-compose.yml: ok, 28 services\n")


def test_no_secret_stands_in_the_files() -> None:
    for path in (ROOT / "docker-compose.yml", *(ROOT / "deploy").rglob("*")):
        if path.is_file() and path.suffix in {".yml", ".yaml", ".toml", ".sh", ".py", ""}:
            for line in path.read_text().splitlines():
                assert "hr_" not in line, path
                if (
                    "PASSWORD" in line or "SECRET_KEY:" in line or "TOKEN:" in line
                ) and path.name == "docker-compose.yml":
                    assert "${" in line, line
                    assert ":-dev-only-not-a-secret" in line, line


# Several mistakes at once, so that the file is read and judged only a few times.
MISTAKES = [
    [
        ('command: ["controlplane"]', 'command: ["controlplan"]', "there is no command headrace controlplan"),
        ('command: ["router"]', 'command: ["router", "--prot", "1"]', "No such option: --prot"),
        (
            "  HEADRACE_STATE_DIR: /var/lib/headrace\n  HEADRACE_CONFIG",
            "  HEADRACE_STAT_DIR: x\n  HEADRACE_CONFIG",
            "STAT_DIR",
        ),
        ("127.0.0.1:7610:7610", "127.0.0.1:7610:7612", "publishes 7612, where nothing listens"),
        ("/etc/headrace/compose/load.py", "/etc/headrace/compose/lod.py", "mounted from nowhere"),
    ],
    [
        ("127.0.0.1:7605/readyz", "127.0.0.1:7606/readyz", "asks port 7606, where nothing listens"),
        ("127.0.0.1:7602/readyz", "127.0.0.1:7602/ready", "asks /ready, which is no health path"),
        ("HEADRACE_ZONE: eu-west-a", "HEADRACE_ZONE: eu-west-c", "zone eu-west-c is not in the fleet file"),
        ("redis://redis-us-east:6379", "redis://redis-us-west:6379", "names redis-us-west, which is no service"),
        ("router-eu-west-1:7601,", "router-eu-west-1:7602,", "router-eu-west-1:7602, where nothing listens"),
        ("127.0.0.1:7700:7600", "127.0.0.1:7600:7600", "publishes on 7600, and so does"),
        ("--product", "--produkt", "has no option --produkt"),
        ("simulated:2xa100-sxm-80", "simulated:two", "HEADRACE_AGENT_DEVICES"),
        ("networks: [clients-tokyo]", "networks: [clients-osaka]", "network clients-osaka is not declared"),
        (
            "router-us-east-1: {condition: service_healthy}",
            "router-us-east-9: {condition: service_healthy}",
            "no service",
        ),
        ("LOAD_RATE", "LOAD_RAT", "LOAD_RAT is not read by"),
        ("192.0.2.0/25", "203.0.113.0/24", "overlaps with clients-ashburn"),
        ("./fleet/geo/data", "./fleet/geo/date", "which does not exist"),
        ('  user: "10001:10001"', '  user: "0:0"', "user must be a number other than 0"),
    ],
    [
        ('  read_only: true\n  tmpfs: ["/tmp"]', "  read_onyl: true", "read_onyl"),
        ("127.0.0.1:7800:7600", "7800:7600", "loopback"),
    ],
    [
        (
            "${HEADRACE_SECRET_KEY:-dev-only-not-a-secret-change-me-for-anything-real}",
            "${HEADRACE_SECRET_KEY}",
            "HEADRACE_SECRET_KEY",
        )
    ],
    [("services:\n", "services\n", "could not find")],
]


@pytest.mark.parametrize("mistakes", MISTAKES)
def test_each_mistake_is_named(tmp_path: Path, mistakes: list[tuple[str, str, str]]) -> None:
    text = COMPOSE
    for before, after, _ in mistakes:
        assert before in text
        text = text.replace(before, after)
    file = tmp_path / "docker-compose.yml"
    file.write_text(text)
    status, said = check(str(file))
    assert status == 1
    for _, after, words in mistakes:
        assert words in said, (after, said)
