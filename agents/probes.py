"""HTTP to engines: bounded in time and size, never following a redirect, telling apart the ways of not answering."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

MAX_BODY_BYTES = 8 * 1024 * 1024


class ProbeFailure(StrEnum):
    REFUSED = "refused"
    """Nothing listens there: the engine's process is gone or not up yet."""
    TIMEOUT = "timeout"
    """It took the connection, or swallowed it, and did not answer in time. Busy engines do that too."""
    BROKEN = "broken"
    """The connection broke, the name did not resolve, TLS failed, or the answer is no HTTP."""


class ProbeError(Exception):
    """An engine gave no answer."""

    def __init__(self, failure: ProbeFailure, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: str

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def refuses_us(self) -> bool:
        """Our credentials are not accepted."""
        return self.status in (401, 403)

    def json(self) -> Any:
        """The body as JSON; None when it is none. NaN and infinity are not JSON."""
        try:
            return json.loads(self.body, parse_constant=_no_constant)
        except ValueError:
            return None


def _no_constant(name: str) -> Any:
    raise ValueError(name)


Places = Callable[[str, int], Awaitable[list[str]]]
"""Where a host and port may be dialled. Raises OSError when nowhere."""


class _Resolver(AbstractResolver):
    """Names lead where ``places`` lets them, and that very address is dialled."""

    def __init__(self, places: Places) -> None:
        self._places = places

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._places(host, port)
        ]

    async def close(self) -> None:
        return None


class EngineHttp:
    """One connection pool for all engines of a node. Ambient proxy variables are ignored."""

    def __init__(self, *, timeout_seconds: float, places: Places | None = None) -> None:
        """``places`` resolves names; left out, the system does."""
        self._timeout_seconds = timeout_seconds
        self._resolver = None if places is None else _Resolver(places)
        self._session: aiohttp.ClientSession | None = None

    async def get(self, base: str, path: str, api_key: str = "") -> Answer:
        """Raises ProbeError."""
        return await self._request("GET", base + path, api_key, None, self._timeout_seconds)

    async def post(self, base: str, path: str, body: object, api_key: str = "", *, timeout_seconds: float) -> Answer:
        """Raises ProbeError."""
        return await self._request("POST", base + path, api_key, body, timeout_seconds)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _request(self, method: str, url: str, api_key: str, body: object, timeout_seconds: float) -> Answer:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        session = self._opened()
        try:
            async with session.request(
                method, url, headers=headers, json=body, timeout=timeout, allow_redirects=False
            ) as response:
                return Answer(response.status, await _text(response))
        except TimeoutError:
            raise ProbeError(ProbeFailure.TIMEOUT, f"no answer within {timeout_seconds:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise _connect_error(error) from None
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise ProbeError(ProbeFailure.BROKEN, f"{type(error).__name__}: the connection broke") from None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0, limit_per_host=4, keepalive_timeout=15, ttl_dns_cache=5, resolver=self._resolver
            )
            self._session = aiohttp.ClientSession(
                connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session


async def _text(response: aiohttp.ClientResponse) -> str:
    body = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ProbeError(ProbeFailure.BROKEN, f"the answer is larger than {MAX_BODY_BYTES >> 20} MiB")
    return body.decode("utf-8", "replace")


def _connect_error(error: aiohttp.ClientConnectorError) -> ProbeError:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        if not isinstance(error.os_error, socket.gaierror) and error.os_error.args:
            return ProbeError(ProbeFailure.BROKEN, f"{error.host}: {error.os_error.args[-1]}")
        return ProbeError(ProbeFailure.BROKEN, f"the name {error.host} does not resolve")
    if error.errno == errno.ECONNREFUSED or isinstance(error.os_error, ConnectionRefusedError):
        return ProbeError(ProbeFailure.REFUSED, "connection refused")
    return ProbeError(ProbeFailure.BROKEN, f"cannot connect: {error.os_error.strerror or type(error).__name__}")


async def settle(*probes: Any) -> list[Answer | ProbeError]:
    """Run probes together; each comes back as its answer or its failure, in order."""
    results = await asyncio.gather(*probes, return_exceptions=True)
    settled: list[Answer | ProbeError] = []
    for result in results:
        if isinstance(result, Answer | ProbeError):
            settled.append(result)
        elif isinstance(result, BaseException):
            raise result
    return settled
