"""The scanner of metrics text: what a full parser gives, for the families asked for, whatever else is on the page."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from agents.engines.exposition import Scanner
from agents.engines.kinds import ENGINES

DATA = Path(__file__).parent / "data"
NAME = st.from_regex(r"[a-z_][a-z0-9_:]{0,12}", fullmatch=True)
LABELS = st.dictionaries(
    st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True),
    st.text(
        st.characters(exclude_categories=("Cs",), exclude_characters="\r\x85\u2028\u2029\x0b\x0c\x1c\x1d\x1e"),
        max_size=8,
    ),
    max_size=3,
)
VALUE = st.one_of(st.floats(0, 1e12), st.integers(0, 10**9), st.sampled_from(["NaN", "+Inf", "-Inf", "1e3", "0.5"]))


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def line(name: str, labels: dict[str, str], value: object) -> str:
    inside = ",".join(f'{k}="{escaped(v)}"' for k, v in labels.items())
    return f"{name}{{{inside}}} {value}" if labels else f"{name} {value}"


def oracle(page: str, wanted: set[str]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (s.name, frozenset(s.labels.items())): s.value
        for family in text_string_to_metric_families(page)
        for s in family.samples
        if s.name in wanted and math.isfinite(s.value)
    }


def scanned(page: str, wanted: set[str]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = Scanner(wanted).scan(page)
    return {(n, frozenset(s.labels().items())): s.value for n, series in found.families.items() for s in series}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(NAME, LABELS, VALUE), max_size=12), st.data())
def test_gives_what_the_full_parser_gives(
    samples: list[tuple[str, dict[str, str], object]], data: st.DataObject
) -> None:
    """Any mix of names, labels with quotes, braces and escapes, and numbers."""
    unique = {(n, frozenset(lb.items())): (n, lb, v) for n, lb, v in samples}
    page = "\n".join(line(*s) for s in unique.values()) + "\n"
    names = sorted({n for n, _, _ in samples})
    wanted = set(data.draw(st.lists(st.sampled_from(names), unique=True))) if names else set()
    assert scanned(page, wanted) == oracle(page, wanted)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.prom")), ids=lambda p: p.stem)
def test_gives_what_the_full_parser_gives_on_recorded_pages(path: Path) -> None:
    page = path.read_text()
    # The parser renames counters that lack ``_total``; we read what is written.
    written = {re.split(r"[{ ]", row)[0] for row in page.splitlines() if row and not row.startswith("#")}
    wanted = {s.name for f in text_string_to_metric_families(page) for s in f.samples} & written
    assert len(wanted) > 2
    assert scanned(page, wanted) == oracle(page, wanted)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_no_page_makes_it_raise(page: str) -> None:
    for kind in ENGINES.values():
        kind.read(kind.scanner.scan(page))


def test_case_m03_one_nan_drops_nothing_else() -> None:
    """NaN, infinities, garbage, a timestamp and an exemplar on one page."""
    page = (
        "sglang:fwd_occupancy NaN\nx +Inf\nx -Inf\n"
        "sglang:num_queue_reqs 3\n"
        "garbage{\n"
        "sglang:num_running_reqs 4 1700000000000\n"
        'sglang:prompt_tokens_total 120 # {trace_id="a"} 0.5\n'
        "sglang:token_usage NaN\n"
        "sglang:generation_tokens_total{\n"
    )
    names = ("num_queue_reqs", "num_running_reqs", "prompt_tokens_total", "token_usage", "generation_tokens_total")
    scanner = Scanner(f"sglang:{name}" for name in names)
    found = scanner.scan(page)
    assert found.count("sglang:num_queue_reqs") == 3
    assert found.count("sglang:num_running_reqs") == 4
    assert found.total("sglang:prompt_tokens_total") == 120
    assert found.largest("sglang:token_usage") is None, "not a number is unknown, not zero"
    assert found.total("sglang:generation_tokens_total") is None
    assert found.skipped == 2


def test_only_whole_names_count() -> None:
    """Trap b: ``num_requests_waiting`` is the beginning of another name; a family may end in ``_count`` (trap g)."""
    page = (
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 7\nvllm:num_requests_waiting 9\n'
        "nv_inference_pending_request_count 4\nnv_inference_pending_request_count_total 8\n"
    )
    found = Scanner(["vllm:num_requests_waiting", "nv_inference_pending_request_count"]).scan(page)
    assert found.count("vllm:num_requests_waiting") == 9
    assert found.count("nv_inference_pending_request_count") == 4


def test_a_negative_or_absent_value_is_unknown() -> None:
    found = Scanner(["a", "b", "c"]).scan("a -1\nb 1.5\n")
    assert found.count("a") is None
    assert found.share("b") is None, "no share is above one"
    assert found.total("c") is None
