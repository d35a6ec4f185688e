"""The services of docker-compose.yml, brought up as plain processes, serve three cities each at home, also without a node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import services
from tests.edges.compose_processes import ComposeProcesses

TOKEN = "a-token-of-this-test-0123456789"
HOMES = {"load-paris": "eu-west", "load-ashburn": "us-east", "load-tokyo": "ap-northeast"}
RECOVERY_SECONDS = 90.0


@pytest.fixture
def redis_urls(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A Redis for each region."""
    with ExitStack() as stack:
        urls = {}
        for region in HOMES.values():
            folder = tmp_path / f"redis-{region}"
            folder.mkdir()
            try:
                started = services._start_redis(folder)
            except services.NoService as missing:
                pytest.skip(str(missing))
            stack.callback(services._stop, started["pid"], started["command"])
            urls[f"redis-{region}"] = f"{started['url']}/0"
        yield urls


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + RECOVERY_SECONDS
    while not holds():
        assert time.monotonic() < ends, f"never: {what}"
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_composed_services_serve_every_city_at_home_and_survive_a_node(
    tmp_path: Path, empty_postgres_url: str, redis_urls: dict[str, str]
) -> None:
    overrides = {
        "HEADRACE_BOOTSTRAP_ADMIN_TOKEN": TOKEN,
        "HEADRACE_TOKEN": TOKEN,
        "LOAD_RATE": "4",
        "LOAD_REPORT_SECONDS": "0.5",
    }
    fleet = ComposeProcesses(tmp_path, empty_postgres_url, redis_urls, overrides)
    try:
        fleet.up()
        for load in HOMES:
            wait_until(f"{load} served", lambda load=load: fleet.report(load).get("ok", 0) >= 15)  # type: ignore[misc]
        for load, home in HOMES.items():
            report = fleet.report(load)
            assert report.get("failed", 0) == 0, report
            assert report["regions"] == {home: report["ok"]}, report
        control_planes = [fleet.url(f"controlplane-{n}", 7610) for n in (1, 2)]
        for url in control_planes:
            assert items(url, "regions") == ["ap-northeast", "eu-west", "us-east"], "both copies serve the same intent"
            assert len(items(url, "nodes")) == 6
            assert len(items(url, "gpus")) == 12

        # A node dies with all that is on it: its zone's sibling takes over, and no request without a byte is lost.
        before = fleet.report("load-paris")
        fleet.kill("engine-eu-west-a", "agent-eu-west-a")
        wait_until(
            "served by the node that is left",
            lambda: (
                fleet.report("load-paris").get("nodes", {}).get("eu-west-b-1", 0)
                >= before["nodes"].get("eu-west-b-1", 0) + 30
            ),
        )
        after = fleet.report("load-paris")
        assert after.get("failed", 0) == 0, after
        assert set(after) <= {"city", "sent", "ok", "retried", "failed", "regions", "nodes"}, after
    finally:
        statuses = fleet.down()
    killed = {"engine-eu-west-a", "agent-eu-west-a"}
    assert {name: s for name, s in statuses.items() if s != 0 and name not in killed} == {}
    for name in statuses:
        assert "Traceback" not in fleet.log(name), fleet.log(name)


def items(url: str, kind: str) -> list[Any]:
    answer = httpx2.get(
        f"{url}/api/v1/{kind}", headers={"authorization": f"Bearer {TOKEN}"}, trust_env=False, timeout=20
    )
    assert answer.status_code == 200, answer.text
    return sorted(item["name"] for item in answer.json()["items"])
