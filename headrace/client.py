"""The headrace client: several routers, nearest first; a request goes to the first that works.

    async with Client(["http://eu:7600", "http://us:7600"], key="hr_…") as client:
        answer = await client.post("/v1/chat/completions", {"model": …, "messages": […]})
        async with client.stream("/v1/chat/completions", {…, "stream": True}) as stream:
            async for chunk in stream: …

It tries the next router when one cannot be reached, closes or stays silent without a byte, or answers 503. It never sends again
once a byte of the answer has come. A router that failed is asked last until a probe in the background finds it ready.

On aiohttp: a small request costs 0.19 ms of CPU here, of which 0.14 ms are aiohttp's; httpx2 takes 0.96 ms for the same.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

import aiohttp
import orjson

from fleet.errors import HeadraceError, Unavailable

_PROBE_PATH = "/readyz"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try: ``outcome`` is ``answered``, ``unavailable`` (503), ``unreachable``, ``closed`` or ``silent``."""

    router: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Statuses other than 2xx are answers too; only the transport raises."""

    status: int
    headers: Mapping[str, str]
    """Case-insensitive."""
    body: bytes
    attempts: tuple[Attempt, ...]

    @property
    def retries(self) -> int:
        return len(self.attempts) - 1

    def json(self) -> Any:
        return orjson.loads(self.body)


class RoutersFailed(Unavailable):
    """No router gave a byte; ``attempts`` says what became of each try."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self.attempts = tuple(attempts)
        super().__init__("no router answered: " + ", ".join(f"{a.router} {a.outcome}" for a in attempts))


class AnswerBroken(HeadraceError):
    """The answer stopped after its first byte, so it cannot be asked for again without asking twice."""

    def __init__(self, attempts: Sequence[Attempt], reason: str, headers: Mapping[str, str]) -> None:
        self.attempts = tuple(attempts)
        self.headers = headers
        super().__init__(f"the answer broke off: {reason}")


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds, and how often to try."""

    connect_seconds: float = 1.0
    first_byte_seconds: float = 60.0
    idle_seconds: float = 60.0
    """Longest silence inside an answer."""
    attempts: int = 4
    probe_seconds: float = 0.5
    """First pause between probes of a router that failed; doubles up to ``probe_max_seconds``, each with full jitter."""
    probe_max_seconds: float = 5.0


class Ranking:
    """Which router to ask first: as ranked by the user, those known to fail last, the longest failed first among them."""

    def __init__(self, routers: Sequence[str]) -> None:
        cleaned = [router.rstrip("/") for router in routers]
        if not cleaned:
            raise ValueError("a client wants at least one router")
        self._routers = tuple(dict.fromkeys(cleaned))
        self._failed: dict[str, None] = {}

    @property
    def failed_routers(self) -> tuple[str, ...]:
        return tuple(self._failed)

    def order(self) -> tuple[str, ...]:
        return (*(r for r in self._routers if r not in self._failed), *self._failed)

    def failed(self, router: str) -> None:
        # Again at the end, so that of several dead ones each gets its turn.
        self._failed.pop(router, None)
        self._failed[router] = None

    def works(self, router: str) -> None:
        self._failed.pop(router, None)


@dataclass(slots=True)
class Stream:
    """An answer that is still coming. Iterate for its bytes, as they arrive."""

    status: int
    headers: Mapping[str, str]
    attempts: tuple[Attempt, ...]
    _first: bytes
    _response: aiohttp.ClientResponse
    _idle_seconds: float

    @property
    def retries(self) -> int:
        return len(self.attempts) - 1

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunk = self._first
        while chunk:
            yield chunk
            chunk = await self._next()

    async def _next(self) -> bytes:
        try:
            async with asyncio.timeout(self._idle_seconds):
                return await self._response.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise AnswerBroken(self.attempts, _reason(error), self.headers) from error


@dataclass(slots=True)
class _Try:
    """What one attempt came to: a response with its first bytes, or a failure before any."""

    attempt: Attempt
    response: aiohttp.ClientResponse | None = None
    first: bytes = b""


def _reason(error: BaseException) -> str:
    return "no byte in time" if isinstance(error, TimeoutError) else type(error).__name__


class Client:
    """Use as an async context manager; safe for many tasks at once on one loop."""

    def __init__(
        self,
        routers: Sequence[str],
        key: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        on_attempt: Callable[[str], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._ranking = Ranking(routers)
        self._limits = limits or Limits()
        self._headers = {"Accept-Encoding": "identity"} | dict(headers or {})
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._on_attempt = on_attempt
        self._rng = rng or random.Random()  # noqa: S311  jitter
        self._session: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None
        self._prober: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        async def reused(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
            context.trace_request_ctx.reused = True

        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(reused)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_seconds)
        self._session = aiohttp.ClientSession(
            timeout=timeout,
            trace_configs=[trace],
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
            auto_decompress=False,
        )
        # A pooled connection may have been closed by the other side unseen; the one retry that costs uses a new one.
        self._fresh = aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=0, force_close=True), auto_decompress=False
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.gather(self._prober, return_exceptions=True)
        for session in (self._session, self._fresh):
            if session is not None:
                await session.close()
        self._session = self._fresh = None

    @property
    def failed_routers(self) -> tuple[str, ...]:
        """Routers that are asked last now."""
        return self._ranking.failed_routers

    async def get(self, path: str, *, headers: Mapping[str, str] | None = None) -> Answer:
        return await self._whole("GET", path, None, headers)

    async def post(self, path: str, payload: Any, *, headers: Mapping[str, str] | None = None) -> Answer:
        """Send JSON, get the whole answer. Raises RoutersFailed or AnswerBroken."""
        return await self._whole("POST", path, orjson.dumps(payload), headers)

    @asynccontextmanager
    async def stream(
        self, path: str, payload: Any, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Stream]:
        """Send JSON, get the answer as it comes. Leaving early closes the connection, which aborts the request."""
        response, first, attempts = await self._send("POST", path, orjson.dumps(payload), headers)
        finished = False
        try:
            yield Stream(response.status, response.headers, attempts, first, response, self._limits.idle_seconds)
            finished = response.content.at_eof()
        finally:
            if finished:
                response.release()
            else:
                response.close()

    async def _whole(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None) -> Answer:
        response, first, attempts = await self._send(method, path, body, headers)
        chunks = [first]
        try:
            while not response.content.at_eof():
                async with asyncio.timeout(self._limits.idle_seconds):
                    chunks.append(await response.content.readany())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            response.close()
            raise AnswerBroken(attempts, _reason(error), response.headers) from error
        except asyncio.CancelledError:
            response.close()
            raise
        response.release()
        return Answer(response.status, response.headers, b"".join(chunks), attempts)

    async def _send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None
    ) -> tuple[aiohttp.ClientResponse, bytes, tuple[Attempt, ...]]:
        """The first router's answer that stands, with its first bytes."""
        sent = self._headers | dict(headers or {})
        if body is not None:
            sent["Content-Type"] = "application/json"
        attempts: list[Attempt] = []
        while True:
            untried = [r for r in self._ranking.order() if r not in {a.router for a in attempts}]
            if not untried:
                # Everybody had a turn: a little patience before the best one is asked again.
                await asyncio.sleep(self._rng.uniform(0, 0.05 * 2 ** len(attempts)))
            router = untried[0] if untried else self._ranking.order()[0]
            tried = await self._try(router, method, path, body, sent)
            attempts.append(tried.attempt)
            last = len(attempts) >= self._limits.attempts
            if tried.response is not None:
                if tried.attempt.outcome == "answered" or last or not self._may_move_on(tried.response):
                    return tried.response, tried.first, tuple(attempts)
                tried.response.close()
            elif last:
                raise RoutersFailed(attempts)

    @staticmethod
    def _may_move_on(response: aiohttp.ClientResponse) -> bool:
        return response.headers.get("x-should-retry", "").lower() != "false"

    async def _try(self, router: str, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> _Try:
        if self._on_attempt is not None:
            self._on_attempt(router)
        assert self._session is not None, "use the client as a context manager"
        assert self._fresh is not None
        context = SimpleNamespace(reused=False)
        outcome = ""
        for session in (self._session, self._fresh):
            response: aiohttp.ClientResponse | None = None
            try:
                async with asyncio.timeout(self._limits.first_byte_seconds):
                    response = await session.request(
                        method,
                        router + path,
                        data=body,
                        headers=headers,
                        trace_request_ctx=context,
                        allow_redirects=False,
                    )
                    first = await response.content.readany()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                outcome = _outcome(error)
                if response is not None:
                    response.close()
                if outcome == "closed" and context.reused and session is self._session:
                    continue
                break
            except asyncio.CancelledError:
                if response is not None:
                    response.close()
                raise
            if response.status == 503:
                return _Try(Attempt(router, "unavailable"), response, first)
            self._ranking.works(router)
            return _Try(Attempt(router, "answered"), response, first)
        self._ranking.failed(router)
        self._probe_failed()
        return _Try(Attempt(router, outcome))

    # --- routers that failed ------------------------------------------------------------------------------------------

    def _probe_failed(self) -> None:
        if self._prober is None or self._prober.done():
            self._prober = asyncio.get_running_loop().create_task(self._probe())

    async def _probe(self) -> None:
        pause = self._limits.probe_seconds
        while self._ranking.failed_routers:
            await asyncio.sleep(self._rng.uniform(pause / 2, pause))
            pause = min(2 * pause, self._limits.probe_max_seconds)
            for router in self._ranking.failed_routers:
                if await self._ready(router):
                    self._ranking.works(router)

    async def _ready(self, router: str) -> bool:
        assert self._fresh is not None
        try:
            async with (
                asyncio.timeout(self._limits.connect_seconds),
                self._fresh.get(router + _PROBE_PATH, allow_redirects=False) as response,
            ):
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False


def _outcome(error: BaseException) -> str:
    # aiohttp's timeouts are connection errors as well: those of the connect phase come first.
    if isinstance(error, aiohttp.ConnectionTimeoutError | aiohttp.ClientConnectorError):
        return "unreachable"
    if isinstance(error, TimeoutError):
        return "silent"
    return "closed"
