"""Selectors, page tokens, merge patches and references: laws rather than examples."""

from __future__ import annotations

import contextlib
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.api.kinds import API_KINDS
from controlplane.api.paging import MAX_SIZE, make_token, page_size, read_token
from controlplane.api.problems import Problem
from controlplane.api.references import references_of
from controlplane.api.requests import merge_patch, sound_json
from controlplane.api.selectors import parse_fields, parse_labels

KEYS = st.text(string.ascii_lowercase, min_size=1, max_size=3)
VALUES = st.text(string.ascii_letters + string.digits, max_size=3)
LABELS = st.dictionaries(KEYS, VALUES, max_size=4)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(LABELS, KEYS, st.lists(VALUES, min_size=1, max_size=3))
def test_operators_are_what_they_say_and_opposites_exclude_each_other(
    labels: dict[str, str], key: str, values: list[str]
) -> None:
    joined = ", ".join(values)
    assert parse_labels(f"{key}={values[0]}").matches(labels) == (labels.get(key) == values[0])
    assert parse_labels(f"{key} == {values[0]}").matches(labels) == (labels.get(key) == values[0])
    assert parse_labels(f"{key}!={values[0]}").matches(labels) == (labels.get(key) != values[0])
    assert parse_labels(f"{key} in ({joined})").matches(labels) == (labels.get(key) in values)
    assert parse_labels(f"{key} notin ( {joined} )").matches(labels) == (labels.get(key) not in values)
    assert parse_labels(key).matches(labels) == (key in labels)
    assert parse_labels(f"! {key}").matches(labels) == (key not in labels)


@given(LABELS, KEYS, KEYS, VALUES)
def test_all_requirements_must_hold(labels: dict[str, str], one: str, two: str, value: str) -> None:
    both = parse_labels(f"{one} in (a,b,{value}), !{two},{one}!=a")
    parts = [parse_labels(t) for t in (f"{one} in (a,b,{value})", f"!{two}", f"{one}!=a")]
    assert both.matches(labels) == all(p.matches(labels) for p in parts)


@given(st.text(max_size=40))
def test_any_text_is_a_selector_or_a_problem(text: str) -> None:
    for parse in (parse_labels, parse_fields):
        with contextlib.suppress(Problem):  # anything else fails the test
            parse(text)


UNREADABLE = ["a=b=c", "a in b", "a in (b", "a,,b", ",", "a b", "a in (b)c", "=b", "!", "é=1", "a=b,", "a==" + "b" * 64]


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(Problem):
        parse_labels(text)


def test_fields_of_all_types() -> None:
    document = {"spec": {"on": True, "n": 3, "none": None, "deep": {"x": "y"}, "list": [1]}}
    for text in (
        "spec.on=true",
        "spec.n=3",
        "spec.deep.x=y",
        "spec.none!=x",
        "spec.list!=1",
        "spec.missing!=",
        "spec.on!=True",
    ):
        assert parse_fields(text).matches(document), text
    for text in ("spec.on=false", "spec.none=None", "spec.deep=y", "spec.missing="):
        assert not parse_fields(text).matches(document), text


@given(
    st.lists(st.text(max_size=8), max_size=3),
    st.lists(st.text(max_size=8), min_size=2, max_size=2),
    st.binary(min_size=1),
)
def test_a_page_token_reads_back_under_its_own_filters_only(
    filters: list[str], position: list[str], key: bytes
) -> None:
    try:
        token = make_token(key, filters, position)
    except UnicodeEncodeError:
        return  # lone surrogates never get into a name
    assert read_token(key, filters, token, 2) == position
    for other_key, other_filters, width in ((key + b"x", filters, 2), (key, [*filters, "x"], 2), (key, filters, 1)):
        with pytest.raises(Problem):
            read_token(other_key, other_filters, token, width)
    with pytest.raises(Problem):
        read_token(key, filters, token[:-2] + ("AA" if token[-2:] != "AA" else "BB"), 2)


@given(st.text(min_size=1, max_size=60))
def test_any_text_is_no_page_token(text: str) -> None:
    with pytest.raises(Problem):
        read_token(b"key", ["a"], text, 2)


@given(st.none() | st.integers())
def test_page_sizes_are_coerced(wanted: int | None) -> None:
    assert 1 <= page_size(wanted) <= MAX_SIZE


@given(JSON, JSON)
def test_merge_patch_is_idempotent_and_leaves_no_null_where_it_patched(target: Any, patch: Any) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert merge_patch(target, {}) == (target if isinstance(target, dict) else {})
    if isinstance(patch, dict):
        assert all(once[key] is not None for key in patch if key in once)


def test_the_examples_of_rfc_7396() -> None:
    author = {"givenName": "John", "familyName": "Doe"}
    target = {"title": "Goodbye!", "author": author, "tags": ["example", "sample"], "content": "x"}
    patch = {"title": "Hello!", "phoneNumber": "1", "author": {"familyName": None}, "tags": ["example"]}
    assert merge_patch(target, patch) == {
        "title": "Hello!",
        "author": {"givenName": "John"},
        "tags": ["example"],
        "content": "x",
        "phoneNumber": "1",
    }


@pytest.mark.parametrize("value", ["a\x00b", {"a\x00": 1}, ["\ud800"], float("nan"), float("inf"), 1 << 63, -(1 << 63)])
def test_json_that_no_database_keeps_is_refused(value: Any) -> None:
    with pytest.raises(Problem):
        sound_json({"deep": [value]})


@given(JSON)
def test_other_json_passes_unchanged(value: Any) -> None:
    try:
        assert sound_json(value) is value
    except Problem:
        assert "\\x00" in repr(value) or "\\ud" in repr(value)


def test_references_are_found_wherever_a_kind_declares_them() -> None:
    spec = {
        "sla_class": "gold",
        "policy": None,
        "guarantees": [{"model": "a"}, {"model": "b"}],
        "limits": [{"per": "tenant"}, {"per": "model", "model": "c"}],
    }
    found = [(r.pointer, r.kind, r.name) for r in references_of(API_KINDS["tenant"], spec)]
    assert found == [
        ("/spec/sla_class", "sla-class", "gold"),
        ("/spec/guarantees/0/model", "model", "a"),
        ("/spec/guarantees/1/model", "model", "b"),
        ("/spec/limits/1/model", "model", "c"),
    ]
