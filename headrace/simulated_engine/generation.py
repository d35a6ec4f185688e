"""One request in the engine: its sequences go in, its answer comes out, whole or as a stream."""

from __future__ import annotations

import base64
import struct
import time
import uuid
from typing import Any

import orjson

from headrace.simulated_engine import openai, tokens
from headrace.simulated_engine.engine import EngineLoop
from headrace.simulated_engine.http import Exchange
from headrace.simulated_engine.metrics import RequestMetrics
from headrace.simulated_engine.openai import EmbeddingRequest, GenerationRequest, Refused
from headrace.simulated_engine.scheduler import Sequence

DEFAULT_DIMENSIONS = 64


class _Choice:
    __slots__ = ("index", "pieces", "reason", "sequence", "shown")

    def __init__(self, index: int, pieces: list[str], reason: str, sequence: Sequence) -> None:
        self.index = index
        self.pieces = pieces
        self.reason = reason
        self.sequence = sequence
        self.shown = 0


class Generation:
    """A chat or completion request. Aborting the exchange frees every sequence of it, exactly once."""

    def __init__(
        self,
        exchange: Exchange,
        request: GenerationRequest,
        engine: EngineLoop,
        metrics: RequestMetrics,
        context_tokens: int,
    ) -> None:
        self.streaming = request.stream
        self._exchange = exchange
        self._request = request
        self._engine = engine
        self._metrics = metrics
        self._uid = ("chatcmpl-" if request.chat else "cmpl-") + uuid.uuid4().hex
        self._created = int(time.time())
        self._choices = [
            self._choice(number * request.choices + index, prompt, index, context_tokens)
            for number, prompt in enumerate(request.prompts)
            for index in range(request.choices)
        ]
        self._by_sequence = {choice.sequence: choice for choice in self._choices}
        self._unfinished = len(self._choices)

    def _choice(self, number: int, prompt: bytes, index: int, context_tokens: int) -> _Choice:
        request = self._request
        prompt_tokens = tokens.count(prompt)
        wanted = request.max_tokens if request.max_tokens is not None else 1
        if prompt_tokens + wanted > context_tokens:
            raise Refused(
                400,
                f"This model's maximum context length is {context_tokens} tokens. However, you requested {wanted} output "
                f"tokens and your prompt contains at least {prompt_tokens} input tokens, for a total of at least "
                f"{prompt_tokens + wanted} tokens. Please reduce the length of the input prompt or the number of requested "
                "output tokens.",
                param="input_tokens",
            )
        limit = request.max_tokens if request.max_tokens is not None else context_tokens - prompt_tokens
        seed = tokens.answer_seed(prompt, request.seed, index)
        natural = limit + 1 if request.ignore_eos else tokens.natural_length(seed)
        pieces, reason = tokens.words(seed, min(natural, limit)), "stop" if natural <= limit else "length"
        if request.stops and (cut := tokens.cut_at_stop(pieces, request.stops)) is not None:
            pieces, reason = cut[0], "stop"
        return _Choice(number, pieces, reason, Sequence(prompt_tokens, len(pieces), tokens.block_hashes(prompt)))

    def start(self) -> None:
        """Queue it. Raises Refused when it can never fit."""
        self._exchange.on_abort = self._abort
        try:
            for choice in self._choices:
                self._engine.submit(choice.sequence, self)
        except ValueError as error:
            for choice in self._choices:
                self._engine.abort(choice.sequence)
            raise Refused(400, str(error)) from None

    def progressed(self, sequence: Sequence, tokens: int, at: float, finished: bool) -> None:
        choice = self._by_sequence[sequence]
        if sequence.generated == tokens:
            self._metrics.time_to_first_token.observe(at - sequence.submitted_at)
            self._metrics.queue.observe((sequence.started_at or at) - sequence.submitted_at)
        if finished:
            self._unfinished -= 1
            self._metrics.finished[choice.reason] += 1
            self._metrics.request.observe(at - sequence.submitted_at)
        if self.streaming:
            self._stream(choice, tokens, finished)
        elif self._unfinished == 0:
            answers = [("".join(c.pieces), c.reason) for c in self._choices]
            self._exchange.respond(
                200, openai.whole_answer(self._request, self._uid, self._created, answers, self._usage())
            )

    def _stream(self, choice: _Choice, count: int, finished: bool) -> None:
        request, out = self._request, b""
        if not self._exchange.streaming:
            self._exchange.start_stream()
        extra: dict[str, Any] | None = self._usage() if request.continuous_usage else None
        if request.chat and choice.shown == 0:
            out += openai.event(request, self._uid, self._created, [openai.role_choice(choice.index)], extra)
        text = "".join(choice.pieces[choice.shown : choice.shown + count])
        choice.shown += count
        reason = choice.reason if finished else None
        shown = openai.text_choice(request, choice.index, text, reason)
        out += openai.event(request, self._uid, self._created, [shown], extra)
        if self._unfinished == 0:
            if request.include_usage:
                out += openai.event(request, self._uid, self._created, [], self._usage())
            out += openai.DONE
        self._exchange.send(out)
        if self._unfinished == 0:
            self._exchange.end_stream()

    def _usage(self) -> dict[str, Any]:
        prompts = self._choices[:: self._request.choices]
        return openai.usage(
            sum(c.sequence.prompt_tokens for c in prompts),
            sum(c.sequence.generated for c in self._choices),
            sum(c.sequence.cached for c in prompts),
        )

    def _abort(self) -> None:
        for choice in self._choices:
            self._engine.abort(choice.sequence)
        self._metrics.finished["abort"] += self._unfinished


class Embedding:
    """An embedding request: prefill only."""

    streaming = False

    def __init__(
        self,
        exchange: Exchange,
        request: EmbeddingRequest,
        engine: EngineLoop,
        metrics: RequestMetrics,
        context_tokens: int,
    ) -> None:
        self._exchange = exchange
        self._request = request
        self._engine = engine
        self._metrics = metrics
        self._sequences = [Sequence(tokens.count(text), 0, tokens.block_hashes(text)) for text in request.inputs]
        longest = max(sequence.prompt_tokens for sequence in self._sequences)
        if longest > context_tokens:
            raise Refused(
                400,
                f"This model's maximum context length is {context_tokens} tokens. However, your input has {longest}.",
                param="input",
            )
        self._unfinished = len(self._sequences)

    def start(self) -> None:
        self._exchange.on_abort = self._abort
        for sequence in self._sequences:
            self._engine.submit(sequence, self)

    def progressed(self, sequence: Sequence, tokens: int, at: float, finished: bool) -> None:
        self._unfinished -= 1
        self._metrics.finished["stop"] += 1
        self._metrics.request.observe(at - sequence.submitted_at)
        if self._unfinished == 0:
            self._exchange.respond(200, self._answer())

    def _answer(self) -> bytes:
        data = []
        for index, text in enumerate(self._request.inputs):
            vector: Any = tokens.embedding(text, self._request.dimensions or DEFAULT_DIMENSIONS)
            if self._request.base64:
                vector = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
            data.append({"index": index, "object": "embedding", "embedding": vector})
        return orjson.dumps(
            {
                "id": f"embd-{uuid.uuid4().hex}",
                "object": "list",
                "created": int(time.time()),
                "model": self._request.model,
                "data": data,
                "usage": openai.usage(sum(s.prompt_tokens for s in self._sequences), 0, 0),
            }
        )

    def _abort(self) -> None:
        for sequence in self._sequences:
            self._engine.abort(sequence)
        self._metrics.finished["abort"] += self._unfinished
