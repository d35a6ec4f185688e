"""OpenAI's words as vLLM speaks them: requests read and checked, answers written. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

MAX_CHOICES = 128


class Refused(Exception):
    """A request that is answered with an error; carries vLLM's words for it."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        return orjson.dumps(
            {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}
        )


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A chat or completion request, checked."""

    chat: bool
    model: str
    prompts: tuple[bytes, ...]
    """As text or, for token ids, their little-endian bytes: four bytes a token either way."""
    choices: int
    max_tokens: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    stops: tuple[str, ...]
    seed: int
    ignore_eos: bool


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    model: str
    inputs: tuple[bytes, ...]
    dimensions: int | None
    base64: bool


def read_json(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refused(400, "the body must be a JSON object")
    return value


def _field(
    data: Mapping[str, Any], name: str, kinds: type | tuple[type, ...], ok: Callable[[Any], bool], wants: str
) -> Any:
    """An optional field; a value of the wrong kind or out of bounds is refused, by name."""
    value = data.get(name)
    if value is None:
        return None
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool) or not ok(value):
        raise Refused(400, f"{name} must be {wants}", param=name)
    return value


def _model(data: Mapping[str, Any], served: Callable[[str], bool]) -> str:
    model = data.get("model")
    if not isinstance(model, str) or not model:
        raise Refused(400, "model must be a string", param="model")
    if not served(model):
        raise Refused(404, f"The model `{model}` does not exist.", "NotFoundError", "model")
    return model


def _ids(value: list[Any]) -> bytes:
    return b"".join((token & 0xFFFFFFFF).to_bytes(4, "little") for token in value)


def _texts(value: Any, name: str) -> tuple[bytes, ...]:
    """A string, a list of strings, a list of token ids, or a list of those."""
    if isinstance(value, str):
        return (value.encode("utf-8", "surrogatepass"),)
    if isinstance(value, list) and value and len(value) <= 2048:
        if all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            return (_ids(value),)
        if all(isinstance(item, str) for item in value):
            return tuple(item.encode("utf-8", "surrogatepass") for item in value)
        if all(
            isinstance(item, list) and item and all(isinstance(t, int) and not isinstance(t, bool) for t in item)
            for item in value
        ):
            return tuple(_ids(item) for item in value)
    raise Refused(400, f"{name} must be a string, a list of strings, or token ids", param=name)


def _chat_prompt(messages: Any) -> bytes:
    """The messages as a chat template would write them. Content may be null, absent, or a list of parts."""
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "messages must be a list of at least one message", param="messages")
    out: list[str] = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Refused(400, "every message must be an object with a role", param="messages")
        content = message.get("content")
        if isinstance(content, list):
            parts = [part.get("text") for part in content if isinstance(part, dict)]
            content = "".join(part for part in parts if isinstance(part, str))
        elif content is not None and not isinstance(content, str):
            raise Refused(400, "content must be a string, a list of parts, or null", param="messages")
        out.append(f"<|im_start|>{message['role']}\n{content or ''}<|im_end|>\n")
    out.append("<|im_start|>assistant\n")
    return "".join(out).encode("utf-8", "surrogatepass")


def read_generation(body: bytes, *, chat: bool, served: Callable[[str], bool]) -> GenerationRequest:
    """Raises Refused."""
    data = read_json(body)
    model = _model(data, served)
    prompts = (_chat_prompt(data.get("messages")),) if chat else _texts(data.get("prompt"), "prompt")
    limit = None
    for name in ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",):
        limit = limit or _field(data, name, int, lambda v: v >= 1, "an integer of at least 1")
    if not chat and limit is None:
        limit = 16
    stop = data.get("stop")
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if not all(isinstance(item, str) and item for item in stops) or len(stops) > 16:
        raise Refused(400, "stop must be a string or a list of strings", param="stop")
    options = _field(data, "stream_options", dict, lambda _: True, "an object") or {}
    stream = bool(_field(data, "stream", bool, lambda _: True, "true or false"))
    if options and not stream:
        raise Refused(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    _field(data, "temperature", (int, float), lambda v: 0 <= v <= 100, "a number of at least 0")
    _field(data, "top_p", (int, float), lambda v: 0 < v <= 1, "a number above 0 and at most 1")
    return GenerationRequest(
        chat=chat,
        model=model,
        prompts=prompts,
        choices=_field(data, "n", int, lambda v: 1 <= v <= MAX_CHOICES, f"1 to {MAX_CHOICES}") or 1,
        max_tokens=limit,
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        stops=stops,
        seed=_field(data, "seed", int, lambda v: -(2**63) <= v < 2**63, "an integer of 64 bits") or 0,
        ignore_eos=bool(_field(data, "ignore_eos", bool, lambda _: True, "true or false")),
    )


def read_embedding(body: bytes, *, served: Callable[[str], bool]) -> EmbeddingRequest:
    """Raises Refused."""
    data = read_json(body)
    encoding = data.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise Refused(400, "encoding_format must be float or base64", param="encoding_format")
    return EmbeddingRequest(
        _model(data, served),
        _texts(data.get("input"), "input"),
        _field(data, "dimensions", int, lambda v: 1 <= v <= 4096, "1 to 4096"),
        encoding == "base64",
    )


def usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def whole_answer(
    request: GenerationRequest, uid: str, created: int, choices: list[tuple[str, str]], tokens: dict[str, Any]
) -> bytes:
    """``choices`` as (text, finish reason)."""
    listed: list[dict[str, Any]] = []
    for index, (text, reason) in enumerate(choices):
        choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        if request.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
        else:
            choice["text"] = text
        listed.append(choice)
    return orjson.dumps(
        {
            "id": uid,
            "object": "chat.completion" if request.chat else "text_completion",
            "created": created,
            "model": request.model,
            "choices": listed,
            "usage": tokens,
        }
    )


def event(
    request: GenerationRequest,
    uid: str,
    created: int,
    choices: list[dict[str, Any]],
    tokens: dict[str, Any] | None = None,
) -> bytes:
    """One server-sent event."""
    data: dict[str, Any] = {
        "id": uid,
        "object": "chat.completion.chunk" if request.chat else "text_completion",
        "created": created,
        "model": request.model,
        "choices": choices,
    }
    if tokens is not None:
        data["usage"] = tokens
    return b"data: " + orjson.dumps(data) + b"\n\n"


def role_choice(index: int) -> dict[str, Any]:
    return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}


def text_choice(request: GenerationRequest, index: int, text: str, reason: str | None) -> dict[str, Any]:
    if request.chat:
        return {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": reason}
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


DONE = b"data: [DONE]\n\n"
