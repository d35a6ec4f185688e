"""Logs: one record per event whatever is in it, and no secret in any."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.process import logs


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def capture(*, as_json: bool = True, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.setup("router", level=level, json=as_json, stream=stream)
    return stream


def records(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().split("\n") if line]


def test_a_record_is_one_json_object_with_its_context() -> None:
    stream = capture()
    logs.get_logger("gateway").info("served", status=200, model="m", seconds=0.5)
    logging.getLogger("library").warning("odd %s", "thing")
    logs.get_logger("gateway").debug("not wanted")
    first, second = records(stream)
    assert (first["event"], first["process"], first["source"], first["status"]) == ("served", "router", "gateway", 200)
    assert first["level"] == "info"
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["level"], second["process"]) == ("odd thing", "warning", "router")


ODD = ["x" * 10_000, '","level":"ERROR', "a\x1b[31mb\tc", "a\nb\r\nc", "\u2028\u0085\x00", "\udcff", "你好"]


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("as_json", [True, False])
def test_case_h10_odd_values_stay_inside_their_record(value: str, as_json: bool) -> None:
    stream = capture(as_json=as_json)
    logs.get_logger("gateway").info(
        "request", request_id=value, nested={"k": [value]}, raw=value.encode("utf-8", "replace")
    )
    text = stream.getvalue()
    assert text.endswith("\n")
    assert len(text.splitlines()) == 1
    assert text.isascii() or not as_json
    assert "\x1b" not in text
    assert len(text) < 20_000 * 2
    if as_json:
        assert records(stream)[0]["level"] == "info"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=60), max_size=4), st.text(max_size=80))
def test_case_h10_any_text_is_one_record(values: dict[str, str], event: str) -> None:
    stream = capture()
    reserved = {"event", "level", "timestamp", "process", "exc_info", "stack_info", "self", "exception", "_record"}
    logs.get_logger("x").info(event, **{f"k_{k}": v for k, v in values.items() if k not in reserved})
    assert len(stream.getvalue().splitlines()) == 1
    assert records(stream)[0]["process"] == "router"


CANARY = "hr_canary0123456789canary0123456789abcdef"


@pytest.mark.parametrize("as_json", [True, False])
def test_case_v03_secrets_are_masked_wherever_they_stand(as_json: bool) -> None:
    stream = capture(as_json=as_json, level="debug")
    log = logs.get_logger("gateway")
    log.info("refused", authorization=f"Bearer {CANARY}", headers={"Authorization": CANARY, "Cookie": CANARY})
    log.info("sent", text=f"authorization: Bearer {CANARY}; then {CANARY}", url=f"redis://u:{CANARY}@h/0")
    log.info("asked", path=f"/v1/keys?key={CANARY}", api_key=CANARY, router_token=CANARY, secret_key=[CANARY])
    logging.getLogger("lib").error("failed with %s", CANARY)
    try:
        raise ValueError(f"bad key {CANARY}")
    except ValueError:
        log.exception("failed")
    text = stream.getvalue()
    assert "canary" not in text
    assert "ValueError" in text
    assert "/v1/keys" in text


def test_what_only_looks_like_a_secret_is_kept() -> None:
    stream = capture()
    logs.get_logger("x").info("counted", input_tokens=12, max_tokens=3, key="model", token=None)
    record = records(stream)[0]
    assert (record["input_tokens"], record["max_tokens"], record["key"], record["token"]) == (12, 3, "model", None)


def test_numbers_that_json_lacks_and_deep_values() -> None:
    stream = capture()
    deep: list[Any] = []
    for _ in range(50):
        deep = [deep]
    logs.get_logger("x").info("odd", nan=float("nan"), inf=float("inf"), deep=deep, error=OSError(2, "no"))
    record = records(stream)[0]
    assert record["nan"] == "nan"
    assert "no" in record["error"]
