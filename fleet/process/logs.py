"""Logs: one JSON object per line on standard error, or a readable line on a terminal; secrets never get through.

Structured records (structlog) and those of libraries (logging) pass the same processors, so both are redacted and both
stay one record per event whatever a client managed to get into a value (case-H10).
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger, Processor

MASK = "[redacted]"
_TEXT_LIMIT = 4096
_DEPTH_LIMIT = 6
_SECRET_KEY = re.compile(
    r"(^|[_.-])(authorization|token|secret|password|passwd|pepper|api_?key|secret_?key|hop_?key|private_?key|cookie)s?$",
    re.IGNORECASE,
)
# What secrets look like when they turn up inside a text: bearer tokens, keys of our own and of common formats, URL passwords.
_IN_TEXT = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',;]+"), rf"\1 {MASK}"),
    (re.compile(r"\b(?:hr|hra|hrr|hrj|sk|pk)[_-][A-Za-z0-9_-]{8,}"), MASK),
    (re.compile(r"(?<=://)([^/@:\s]*):[^/@\s]+@"), rf"\1:{MASK}@"),
    (re.compile(r"(?i)([?&](?:key|api_key|token|secret|password)=)[^&\s\"']+"), rf"\1{MASK}"),
)
_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def setup(process: str, *, level: str = "info", json: bool | None = None, stream: TextIO | None = None) -> None:
    """Configure logging of this process. ``json`` None means JSON unless ``stream`` (standard error) is a terminal."""
    out = stream if stream is not None else sys.stderr
    as_json = json if json is not None else not out.isatty()
    number = logging.getLevelNamesMapping()[level.upper()]

    def with_process(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event.setdefault("process", process)
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        with_process,
        structlog.processors.format_exc_info,
        redact,
    ]
    render: Processor = render_json if as_json else render_line
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processor=render,
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            keep_exc_info=False,
            keep_stack_info=False,
            use_get_message=True,
        )
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(number, logging.WARNING) if level != "debug" else logging.INFO)
    # Connection errors of clients and scrapers are counted where they happen; the server's own lines add nothing.
    logging.getLogger("uvicorn.access").disabled = True


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger whose records carry ``source=name``. Cheap; may be made at import."""
    return cast(FilteringBoundLogger, structlog.get_logger(source=name))


def redact(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Mask values under keys that name a secret, and secrets inside texts, at any depth; cut over-long texts."""
    return {str(key): _clean(value, str(key), 0) for key, value in event.items() if key not in _INTERNAL} | {
        key: event[key] for key in _INTERNAL if key in event
    }


_INTERNAL = ("_record", "_from_structlog")


def clean_text(text: str) -> str:
    """``text`` without secrets, at most 4,096 characters."""
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return text if len(text) <= _TEXT_LIMIT else f"{text[:_TEXT_LIMIT]}… ({len(text)} characters)"


def _clean(value: Any, key: str, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if _SECRET_KEY.search(key):
        return MASK
    if isinstance(value, str):
        return clean_text(value)
    if depth >= _DEPTH_LIMIT:
        return "…"
    if isinstance(value, Mapping):
        return {str(k): _clean(v, str(k), depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(v, "", depth + 1) for v in value]
    if isinstance(value, bytes | bytearray):
        return clean_text(bytes(value).decode("utf-8", "backslashreplace"))
    return clean_text(str(value) if isinstance(value, BaseException) else repr(value))


def render_json(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    """One line of ASCII JSON: nothing in a value can end the line, move a cursor or break the encoding."""
    return json.dumps(_finite(event), ensure_ascii=True, default=repr, skipkeys=True)


def render_line(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    """A line for people. Control characters are shown as escapes; only a traceback takes lines of its own."""
    record = dict(event)
    when = str(record.pop("timestamp", ""))[11:19]
    level = str(record.pop("level", "")).upper()[:5]
    name = record.pop("source", None) or record.pop("logger", "")
    record.pop("process", None)
    trace = record.pop("exception", None)
    what = _visible(str(record.pop("event", "")))
    pairs = " ".join(f"{_visible(str(k))}={_visible(v if isinstance(v, str) else repr(v))}" for k, v in record.items())
    line = f"{when} {level:<5} {_visible(str(name))}: {what}" + (f"  {pairs}" if pairs else "")
    return line if trace is None else line + "\n" + "\n".join(_visible(part) for part in str(trace).split("\n"))


def _visible(text: str) -> str:
    return _ODD.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _finite(value: Any) -> Any:
    """JSON has no NaN or infinity; they are written as text."""
    if isinstance(value, float) and value - value != 0:
        return str(value)
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return value
