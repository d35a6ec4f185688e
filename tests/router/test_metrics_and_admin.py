"""What operators see: series with bounded labels, pages behind a token, and nothing secret."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fleet.request import Usage
from regional.metrics import MAX_MODELS, MAX_REQUEST_SERIES, RouterMetrics, outcome_label
from regional.request.steps import Outcome, RejectReason, RequestRecord
from regional.settings import RouterSettings
from tests.router.engines import BareEngine
from tests.router.routers import fleet_file, router
from tests.router.waiting import until

CONTRACT = [
    "headrace_requests_total",
    "headrace_request_duration_seconds",
    "headrace_time_to_first_token_seconds",
    "headrace_routing_decision_seconds",
    "headrace_queue_depth",
    "headrace_queue_wait_seconds",
    "headrace_inflight",
    "headrace_retries_total",
    "headrace_ejections_total",
    "headrace_failovers_total",
    "headrace_snapshot_version",
    "headrace_snapshot_age_seconds",
    "headrace_controlplane_connected",
    "headrace_agent_report_age_seconds",
    "headrace_nodes",
    "headrace_endpoints",
    "headrace_gpus",
    "headrace_tokens_total",
    "headrace_config_errors_total",
    "headrace_certificate_expiry_timestamp_seconds",
    "headrace_build_info",
]


def record(
    model: str = "m", outcome: Outcome = Outcome.OK, reason: RejectReason | None = None, **more: str
) -> RequestRecord:
    return RequestRecord(
        "r", "t", "k", model, more.get("sla", "standard"), outcome, "eu", more.get("region", "eu"), "z", "n", "e", (),
        1, 0, 0, 1.0, 0.1, Usage(10, 5, 2), reason,
    )  # fmt: skip


def series(metrics: RouterMetrics) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def test_every_name_dashboards_rely_on_is_there() -> None:
    described = {
        line.split()[2]
        for line in generate_latest(RouterMetrics("eu", "1").registry).decode().splitlines()
        if line.startswith("# TYPE")
    }
    assert not [name for name in CONTRACT if name not in described]


def test_only_known_models_become_labels_and_all_is_bounded() -> None:
    metrics = RouterMetrics("eu", "1")
    metrics.set_models(f"m{i}" for i in range(500))
    for i in range(500):
        metrics.request_over(record(f"m{i}"))
        metrics.request_over(record(f"made up by a client {i}"))
        for region in range(20):
            metrics.request_over(record(f"m{i}", region=f"region-{region}", sla=f"class-{i % 7}"))
    models = {labels["model"] for name, labels, _ in series(metrics) if name == "headrace_requests_total"}
    assert len(models) == MAX_MODELS + 1
    assert not any("client" in m for m in models)
    every = list(series(metrics))
    assert len(every) < 5_000
    assert sum(1 for n, _, _ in every if n == "headrace_requests_total") <= MAX_REQUEST_SERIES + 8
    assert sum(v for n, _, v in every if n == "headrace_requests_total") == 500 * 22, "bounded, but nothing is lost"


@pytest.mark.parametrize(
    ("outcome", "reason", "label"),
    [
        (Outcome.OK, None, "ok"),
        (Outcome.CLIENT_ERROR, None, "client_error"),
        (Outcome.ABORTED, None, "aborted"),
        (Outcome.TIMEOUT_FIRST_BYTE, None, "timeout"),
        (Outcome.STREAM_BROKEN, None, "upstream_error"),
        (Outcome.REJECTED, RejectReason.MODEL_NOT_FOUND, "client_error"),
        (Outcome.REJECTED, RejectReason.REGION_NOT_ALLOWED, "client_error"),
        (Outcome.REJECTED, RejectReason.OVERLOADED, "shed"),
        (Outcome.REJECTED, RejectReason.NO_ENDPOINT, "shed"),
        (Outcome.REJECTED, RejectReason.DEADLINE, "timeout"),
        (Outcome.REJECTED, RejectReason.UPSTREAM_AUTH, "upstream_error"),
    ],
)
def test_outcomes_have_the_contracts_names(outcome: Outcome, reason: RejectReason | None, label: str) -> None:
    assert outcome_label(record(outcome=outcome, reason=reason)) == label


def test_a_state_that_is_gone_is_zero_and_a_region_that_is_silent_is_absent() -> None:
    metrics = RouterMetrics("eu", "1")
    metrics.set_counts({"ready": 2, "dead": 1}, {}, {})
    metrics.set_counts({"ready": 3}, {}, {})
    metrics.set_peer_rtts({"us": 0.08, "asia": 0.2})
    metrics.set_peer_rtts({"asia": 0.2})
    found = {(name, *labels.values()): value for name, labels, value in series(metrics)}
    assert found["headrace_nodes", "ready"] == 3
    assert found["headrace_nodes", "dead"] == 0
    assert ("headrace_peer_rtt_seconds", "us") not in found


SECRET_CANARIES = ("hr-canary-tenant-key", "engine-canary-key", "admin-canary-token", "join-canary-token")


async def test_pages_want_the_token_and_show_no_secret(tmp_path: Path) -> None:
    tenant = "kind: tenant\nname: acme\nspec: {}\n---\nkind: key\nname: k\nspec: {tenant: acme, secret: hr-canary-tenant-key}"
    async with BareEngine("one").serving() as one:
        path = fleet_file(tmp_path / "f.yaml", ("one", one.url), more=tenant)
        path.write_text(path.read_text().replace("engine: openai", "engine: openai, api_key: engine-canary-key"))
        settings = RouterSettings.embedded(
            fleet=str(path), admin_token="admin-canary-token", join_token="join-canary-token"
        )
        async with router(settings) as running, aiohttp.ClientSession() as session:
            await until(lambda: running.serves("hr-canary-tenant-key"))
            async with session.get(running.admin + "/debug") as answer:
                assert answer.status == 403
                assert answer.content_type == "application/problem+json"
            token = {"authorization": "Bearer admin-canary-token"}
            async with session.get(running.admin + "/debug", headers=token) as answer:
                pages = (await answer.json())["pages"]
            assert {"/debug/endpoints", "/debug/snapshot", "/debug/peers", "/debug/inflight"} <= set(pages)
            for page in [*pages, "/metrics", "/readyz"]:
                async with session.get(running.admin + page, headers=token) as answer:
                    assert answer.status == 200, page
                    text = await answer.text()
                assert not [canary for canary in SECRET_CANARIES if canary in text], page
    assert not [canary for canary in SECRET_CANARIES if canary in repr(settings)]


async def test_a_router_that_stops_finishes_what_runs(tmp_path: Path) -> None:
    async with BareEngine("one").serving() as one:
        path = fleet_file(tmp_path / "f.yaml", ("one", one.url))
        settings = RouterSettings.embedded(fleet=str(path), shutdown_delay_seconds=0.5, shutdown_grace_seconds=10.0)
        async with router(settings) as running:
            await until(running.serves)
            one.hold.clear()
            request = asyncio.create_task(running.chat())
            await until(lambda: one.waiting == 1)
            running.stop.set()
            await until(lambda: _unready(running.admin))
            async with aiohttp.ClientSession() as session, session.get(running.url + "/readyz") as answer:
                assert answer.status == 503, "still listening, so that balancers can see it"
            await until(lambda: _refuses(running.url))
            assert not running.task.done()
            one.hold.set()
            assert (await request)[0] == 200
            await until(running.task.done)


async def _unready(admin: str) -> bool:
    async with aiohttp.ClientSession() as session, session.get(admin + "/readyz") as answer:
        return answer.status == 503 and "draining" in (await answer.json())["reasons"]


async def _refuses(url: str) -> bool:
    try:
        async with aiohttp.ClientSession() as session, session.get(url + "/livez"):
            return False
    except aiohttp.ClientConnectionError:
        return True
