"""OpenAI's JSON, read and changed at the border and nowhere else.

A body is never parsed whole: msgspec picks out the few fields that steer the request and leaves the rest as raw bytes, and
a change is a splice of one value, so that everything a client wrote reaches the engine byte for byte (case-B01, case-B06).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from fleet.request import Task, Usage

_T = TypeVar("_T")

PATHS: dict[bytes, Task] = {
    b"/v1/chat/completions": Task.CHAT,
    b"/v1/completions": Task.COMPLETION,
    b"/v1/embeddings": Task.EMBEDDING,
}
NO_USAGE = Usage()
_BYTES_PER_TOKEN = 4
_ATTACHMENT_TOKENS = 256
"""What an image or a sound counts in the estimate; its base64 text says nothing about tokens."""
_ATTACHMENTS_FROM_BYTES = 8192
_MAX_OUTPUT_TOKENS = 10_000_000
_INCLUDE_USAGE = b'"include_usage":true'
_NONE = msgspec.Raw(b"")


class BadBody(Exception):
    """The body cannot be routed by; the text is for the client."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class _Fields(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    messages: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE
    tools: msgspec.Raw = _NONE
    stream_options: msgspec.Raw = _NONE
    prompt_cache_key: str | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


_fields = msgspec.json.Decoder(_Fields)
_options = msgspec.json.Decoder(_StreamOptions)
_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)
_flag = msgspec.json.Decoder(bool)
_count = msgspec.json.Decoder(int)
# RecursionError: msgspec's answer to JSON nested deeper than the stack.
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(slots=True)
class RequestBody:
    """A request's body and what routing needs of it."""

    raw: bytes
    task: Task
    model: str
    stream: bool
    input_tokens: int
    max_output_tokens: int | None
    cache_key: str
    """``prompt_cache_key``, the session of clients that send no header for it."""
    wants_usage: bool
    """The client itself asked for the usage chunk of a stream."""
    stream_options: msgspec.Raw

    def rendered(self, served_as: str) -> bytes:
        """The bytes for an engine that calls the model ``served_as``; usage is asked for on every stream."""
        body = self.raw
        if served_as != self.model:
            start, end = _span(body, "model")
            body = body[:start] + msgspec.json.encode(served_as) + body[end:]
        if self.stream and not self.wants_usage:
            body = _with_usage(body, bytes(self.stream_options).strip())
        return body


def read_body(raw: bytes, task: Task) -> RequestBody:
    """Pick out what routing needs. Raises BadBody only for what cannot be routed; the engine judges the rest."""
    try:
        fields = _fields.decode(raw)
    except msgspec.ValidationError:
        fields = _leniently(raw)
    except _DECODE_ERRORS:
        raise BadBody("The body is not valid JSON.") from None
    model = fields.model
    if not model:
        raise BadBody("The field 'model' must name a model.", "model")
    if len(model) > 256:
        raise BadBody("The model's name is too long.", "model")
    limit = fields.max_completion_tokens if fields.max_completion_tokens is not None else fields.max_tokens
    if limit is not None and not 0 < limit <= _MAX_OUTPUT_TOKENS:
        limit = None
    stream = fields.stream is True and task is not Task.EMBEDDING
    return RequestBody(
        raw,
        task,
        model,
        stream,
        _estimate(fields),
        limit,
        fields.prompt_cache_key or "",
        stream and len(fields.stream_options) > 0 and _wants_usage(fields.stream_options),
        fields.stream_options,
    )


def _leniently(raw: bytes) -> _Fields:
    """The same for a body whose fields have other types than usual: those that cannot be read count as absent."""
    try:
        values = _raw_fields.decode(raw)
    except msgspec.ValidationError:
        raise BadBody("The body must be a JSON object.") from None
    except _DECODE_ERRORS:
        raise BadBody("The body is not valid JSON.") from None

    return _Fields(
        _read(values, "model", _text),
        _read(values, "stream", _flag),
        _read(values, "max_tokens", _count),
        _read(values, "max_completion_tokens", _count),
        values.get("messages", _NONE),
        values.get("prompt", _NONE),
        values.get("input", _NONE),
        values.get("tools", _NONE),
        values.get("stream_options", _NONE),
        _read(values, "prompt_cache_key", _text),
    )


def _read(values: dict[str, msgspec.Raw], name: str, decoder: msgspec.json.Decoder[_T]) -> _T | None:
    try:
        return decoder.decode(values[name]) if name in values else None
    except _DECODE_ERRORS:
        return None


def _wants_usage(options: msgspec.Raw) -> bool:
    try:
        return _options.decode(options).include_usage is True
    except _DECODE_ERRORS:
        return False


def _estimate(fields: _Fields) -> int:
    size = len(fields.messages) + len(fields.prompt) + len(fields.input) + len(fields.tools)
    tokens = 0
    if size > _ATTACHMENTS_FROM_BYTES:
        for raw in (fields.messages, fields.prompt, fields.input):
            attached, count = _attachments(bytes(raw))
            size -= attached
            tokens += count * _ATTACHMENT_TOKENS
    return max(1, tokens + size // _BYTES_PER_TOKEN)


_AUDIO_DATA = re.compile(rb'"data"\s*:\s*"')


def _attachments(raw: bytes) -> tuple[int, int]:
    """Bytes of base64 inside a prompt, and in how many pieces: data URLs and ``input_audio`` (case-B03)."""
    size = count = at = 0
    while (start := raw.find(b";base64,", at)) >= 0:
        at = raw.find(b'"', start)
        if at < 0:
            break
        size += at - start
        count += 1
    at = 0
    while (found := raw.find(b'"input_audio"', at)) >= 0:
        at = found + 13
        value = _AUDIO_DATA.search(raw, at)
        if value is None:
            break
        at = raw.find(b'"', value.end())
        if at < 0:
            break
        size += at - value.end()
        count += 1
    return size, count


_KEY = re.compile(rb'[\s,{]*"(?:[^"\\]|\\.)*"\s*:\s*')
_REST = re.compile(rb"\s*\}\s*")


def _span(body: bytes, name: str) -> tuple[int, int]:
    """Where the value of a top-level field stands. Raises BadBody when a field is there twice: which one would count?

    msgspec has found where values end; walking over them in order finds where they begin.
    """
    found: tuple[int, int] | None = None
    at = 0
    for key, raw in _raw_fields.decode(body).items():
        match = _KEY.match(body, at)
        value = bytes(raw)
        if match is None or not body.startswith(value, match.end()):
            raise BadBody("A field of the body is there twice.")
        at = match.end() + len(value)
        if key == name:
            found = match.end(), at
    if _REST.fullmatch(body, at) is None:
        raise BadBody("A field of the body is there twice.")
    if found is None:
        raise BadBody(f"The field '{name}' is missing.", name)
    return found


def _with_usage(body: bytes, options: bytes) -> bytes:
    """The body with ``include_usage`` switched on, and nothing else changed."""
    if not options:
        at = body.index(b"{") + 1
        return body[:at] + b'"stream_options":{' + _INCLUDE_USAGE + b"}," + body[at:]
    start, end = _span(body, "stream_options")
    if options == b"null":
        return body[:start] + b"{" + _INCLUDE_USAGE + b"}" + body[end:]
    if not options.startswith(b"{"):
        return body  # not an object: for the engine to refuse
    inner = _raw_fields.decode(options)
    if "include_usage" in inner:
        at, after = _span(options, "include_usage")
        options = options[:at] + b"true" + options[after:]
    else:
        options = b"{" + _INCLUDE_USAGE + (b"," if inner else b"") + options[1:]
    return body[:start] + options + body[end:]


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _UsageJson(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    usage: _UsageJson | None = None


class _Chunk(msgspec.Struct):
    usage: _UsageJson | None = None
    choices: list[msgspec.Raw] | None = None


_answer = msgspec.json.Decoder(_Answer)
_chunk = msgspec.json.Decoder(_Chunk)


def _usage_of(found: _UsageJson | None) -> Usage:
    if found is None:
        return NO_USAGE
    details = found.prompt_tokens_details
    return Usage(found.prompt_tokens, found.completion_tokens, details.cached_tokens if details else None)


def read_answer(body: bytes) -> Usage | None:
    """Usage of a whole answer, unknown where it does not say; None when the body is not JSON at all."""
    try:
        return _usage_of(_answer.decode(body).usage)
    except msgspec.ValidationError:
        return NO_USAGE
    except _DECODE_ERRORS:
        return None


def read_chunk(payload: bytes) -> tuple[Usage, bool]:
    """Usage in the payload of one stream event, and whether the event carries nothing else (no choices)."""
    try:
        chunk = _chunk.decode(payload)
    except _DECODE_ERRORS:
        return NO_USAGE, False
    return _usage_of(chunk.usage), chunk.usage is not None and chunk.choices == []


def rename_model(body: bytes, name: str) -> bytes:
    """A JSON object with its top-level ``model`` set to ``name``; unchanged when it has none or is no object."""
    try:
        start, end = _span(body, "model")
    except (BadBody, *_DECODE_ERRORS):
        return body
    return body[:start] + msgspec.json.encode(name) + body[end:]
