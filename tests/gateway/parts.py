"""Parts of the gateway's tests: a core that picks from a list, an engine whose every byte is scripted, and a raw client."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fleet.intent import Intent, Secrets
from fleet.locality import Origin, Region
from fleet.request import RequestFacts, Usage
from fleet.resources.keys import key_digest
from fleet.tenancy import SlaClass, Tenant, TenantKey
from regional.request.interfaces import AttemptRevoker
from regional.request.steps import (
    AttemptResult,
    EndpointTarget,
    Outcome,
    Reject,
    RejectReason,
    RequestRecord,
    SendToEndpoint,
    SendToRegion,
    Step,
    WaitFor,
)

PEPPER = b"pepper-of-the-tests"
HOP_KEY = b"hop-key-of-the-tests-32-bytes-...."
KEY = "sk-test-key-of-acme"
OK_JSON = (
    b'{"id":"c-1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}'
)


ACME = Tenant("t-acme", "acme", "standard")
HERE = Region("r-here", "here", jurisdictions=frozenset({"EU"}))


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait for something that tells nobody when it comes true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def intent_with(
    *,
    region: str = "here",
    regions: tuple[Region, ...] = (HERE,),
    tenant: Tenant | None = ACME,
    keys: tuple[TenantKey, ...] | None = None,
    **more: object,
) -> Intent:
    """An intent with one tenant whose key is KEY."""
    if keys is None:
        keys = (TenantKey("k-1", "acme-1", "acme", key_digest(PEPPER, KEY)),) if tenant else ()
    return Intent(
        region=region,
        regions={r.name: r for r in regions},
        tenants={tenant.name: tenant} if tenant else {},
        keys_by_digest={k.digest: k for k in keys},
        sla_classes={"standard": SlaClass("c-std", "standard", 300)},
        secrets=Secrets((PEPPER,), (HOP_KEY,)),
        **more,  # type: ignore[arg-type]
    )


class NoOrigins:
    """Origins that only carry the address."""

    def locate(self, address: str) -> Origin:
        return Origin(address=address)


@dataclass
class ListLife:
    """Tries the core's steps in order; every move is written down."""

    core: ListCore
    facts: RequestFacts
    steps: list[Step]
    began: float
    results: list[AttemptResult] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    record: RequestRecord | None = None
    sent: list[Step] = field(default_factory=list)
    first_byte: float | None = None
    reason: RejectReason | None = None

    def next(self) -> Step:
        step = self.steps.pop(0) if self.steps else self._exhausted()
        if isinstance(step, Reject):
            self.reason = step.reason
        self.sent.append(step)
        return step

    def _exhausted(self) -> Reject:
        last = self.results[-1].outcome if self.results else None
        if last in (Outcome.TIMEOUT_FIRST_BYTE, Outcome.TIMEOUT_TOTAL, Outcome.TIMEOUT_CONNECT):
            return Reject(RejectReason.UPSTREAM_TIMEOUT, "No answer in time.")
        if last is Outcome.OVERLOADED:
            return Reject(RejectReason.OVERLOADED, "All engines are busy.", self.results[-1].retry_after_seconds)
        if last is Outcome.AUTH_FAILED:
            return Reject(RejectReason.UPSTREAM_AUTH, "The engine refused the router.")
        return Reject(RejectReason.UPSTREAM_FAILED, "The engine failed.")

    def on_headers(self, status: int, now: float) -> None:
        self.calls.append("headers")

    def on_first_byte(self, now: float) -> None:
        self.calls.append("first_byte")
        self.first_byte = now

    def note_progress(self, now: float) -> None:
        self.calls.append("progress")

    def on_attempt_failed(self, result: AttemptResult, now: float) -> Step:
        self.calls.append("failed")
        self.results.append(result)
        return self.next()

    def on_wait_over(self, now: float) -> Step:
        self.calls.append("wait_over")
        return self.next()

    def on_end(self, outcome: Outcome, usage: Usage, now: float) -> RequestRecord:
        self.calls.append("end")
        if self.record is None:
            self.core.inflight -= 1
            self.record = RequestRecord(
                self.facts.request_uid,
                self.facts.tenant_uid,
                self.facts.key_uid,
                self.facts.requested_model,
                self.facts.sla_class,
                outcome,
                "here",
                "here",
                "",
                "",
                "",
                (),
                len(self.results) + 1,
                0,
                0,
                now - self.began,
                None if self.first_byte is None else self.first_byte - self.began,
                usage,
                self.reason,
            )
        return self.record


class ListCore:
    """A RequestCore that gives every request the same list of steps."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.lives: list[ListLife] = []
        self.revokes: list[AttemptRevoker] = []
        self.inflight = 0

    def begin(self, facts: RequestFacts, now: float, revoke: AttemptRevoker) -> tuple[ListLife, Step]:
        life = ListLife(self, facts, list(self.steps), now)
        self.lives.append(life)
        self.revokes.append(revoke)
        self.inflight += 1
        return life, life.next()

    @property
    def life(self) -> ListLife:
        """The only request's."""
        assert len(self.lives) == 1
        return self.lives[0]


def to(
    upstream: RawUpstream | str,
    *,
    served_as: str = "m",
    attempt: int = 1,
    connect: float = 2.0,
    first: float = 5.0,
    key: str = "",
) -> SendToEndpoint:
    url = upstream if isinstance(upstream, str) else upstream.url
    target = EndpointTarget(f"e-{url}", "engine-1", url, "here-a", "node-1", ("GPU-1",), served_as, key)
    return SendToEndpoint(attempt, target, "m", connect, first)


def hop_to(region: str, *addresses: str, model: str = "m", attempt: int = 1) -> SendToRegion:
    return SendToRegion(attempt, region, addresses, model, 2.0, 5.0)


def wait(seconds: float) -> WaitFor:
    return WaitFor(seconds)


@dataclass
class Received:
    """One request as an upstream got it."""

    head: bytes
    body: bytes
    connection: int

    @property
    def request_line(self) -> bytes:
        return self.head.split(b"\r\n", 1)[0]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        lines = self.head.split(b"\r\n")[1:]
        return [(n.lower(), v.strip()) for n, _, v in (line.partition(b":") for line in lines if line)]

    def header(self, name: bytes) -> list[bytes]:
        return [v for n, v in self.headers if n == name]

    @property
    def json(self) -> dict[str, object]:
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value


class Wire:
    """What a script gets to answer one request with."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Received) -> None:
        self.reader = reader
        self.writer = writer
        self.request = request

    async def send(self, *parts: bytes) -> None:
        """Each part is a write of its own that has left before the next one."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            await asyncio.sleep(0.01 if len(parts) > 1 else 0)

    async def json(self, body: bytes = OK_JSON, *, status: bytes = b"200 OK", extra: bytes = b"") -> None:
        await self.send(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"
            % (status, extra, len(body), body)
        )

    async def stream_head(self, extra: bytes = b"") -> None:
        await self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n%btransfer-encoding: chunked\r\n\r\n" % extra
        )

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def last_chunk(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def closed_by_peer(self) -> None:
        """Returns when the router has closed or reset the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        """Close with a reset."""
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


Script = Callable[[Wire], Awaitable[None]]


async def answer_ok(wire: Wire) -> None:
    await wire.json()


class RawUpstream:
    """A server on a real socket that reads whole requests and lets a script answer each with bytes."""

    def __init__(self, script: Script = answer_ok) -> None:
        self.script = script
        self.requests: list[Received] = []
        self.connections = 0
        self.open = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.all_closed = asyncio.Event()
        self.all_closed.set()

    async def start(self, host: str = "127.0.0.1", port: int = 0, ssl: object = None) -> RawUpstream:
        self._server = await asyncio.start_server(self._serve, host, port, ssl=ssl)  # type: ignore[arg-type]
        self._host = f"[{host}]" if ":" in host else host
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._scheme = "https" if ssl else "http"
        return self

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self._host}:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connections
        self.connections += 1
        self.open += 1
        self.all_closed.clear()
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                request = Received(head[:-4], b"", number)
                length = request.header(b"content-length")
                if length:
                    request.body = await reader.readexactly(int(length[0]))
                self.requests.append(request)
                await self.script(Wire(reader, writer, request))
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            pass
        finally:
            self.open -= 1
            if not self.open:
                self.all_closed.set()
            self._writers.discard(writer)
            writer.close()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()


@dataclass
class Reply:
    """One answer as the client got it."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    complete: bool
    """False when the connection ended before the body did."""

    def header(self, name: str) -> str | None:
        values = [v for n, v in self.headers if n == name]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None

    @property
    def error(self) -> dict[str, object]:
        """The error object, checked for its shape."""
        found = json.loads(self.body)["error"]
        assert set(found) == {"message", "type", "param", "code"}
        return dict(found)


class RawClient:
    """A client of bytes on a real socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 26))

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            if len(parts) > 1:
                await asyncio.sleep(0.005)

    async def head(self) -> tuple[int, list[tuple[str, str]]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
        pairs = (line.partition(b":") for line in lines[1:])
        return int(lines[0].split()[1]), [(n.decode().lower(), v.strip().decode("latin-1")) for n, _, v in pairs]

    async def chunk(self) -> bytes:
        """One chunk of a body; empty for the last one."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def reply(self) -> Reply:
        status, headers = await self.head()
        names = dict(headers)
        body, complete = b"", True
        try:
            if names.get("transfer-encoding") == "chunked":
                while part := await self.chunk():
                    body += part
            elif "content-length" in names:
                body = await self.reader.readexactly(int(names["content-length"]))
            else:
                body = await self.reader.read()
        except asyncio.IncompleteReadError as cut:
            body, complete = body + cut.partial, False
        except ConnectionError:
            complete = False
        return Reply(status, headers, body, complete)

    async def at_end(self) -> bool:
        """True when the router has closed the connection."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


def post(
    body: bytes | dict[str, object],
    *,
    path: str = "/v1/chat/completions",
    key: str | None = KEY,
    extra: bytes = b"",
    version: bytes = b"1.1",
    length: bool = True,
) -> bytes:
    """A whole request."""
    raw = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    auth = b"Authorization: Bearer %b\r\n" % key.encode() if key is not None else b""
    framing = b"Content-Length: %d\r\n" % len(raw) if length else b""
    return (
        b"POST %b HTTP/%b\r\nHost: router\r\nContent-Type: application/json\r\n%b%b%b\r\n"
        % (path.encode(), version, auth, framing, extra)
        + raw
    )


def chat(stream: bool = False, **more: object) -> dict[str, object]:
    body: dict[str, object] = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **more}
    if stream:
        body["stream"] = True
    return body


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def token(text: str, finish: str | None = None, model: str = "m") -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return event(id="c-1", object="chat.completion.chunk", model=model, choices=[choice])


def usage_event(prompt: int = 5, completion: int = 1) -> bytes:
    return event(
        choices=[],
        usage={"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    )
