"""Asks an engine directly whether it is alive: one small HTTP request over a connection of its own."""

from __future__ import annotations

import asyncio
import errno
import re
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from fleet.endpoint import EngineKind
from regional.gateway.dialling import places_of
from regional.health.actions import ProbeEndpoints, ProbeOutcome, ProbeTarget

MAX_AT_ONCE = 512
"""Probes under way at once, so that a zone that falls silent costs a bounded number of sockets."""
_MAX_STATUS_LINE_BYTES = 4096

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)[ \r]")
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors that say something about this machine, and nothing about the engine."""
_PATHS = {EngineKind.TRITON: "/v2/health/ready"}


class Prober:
    """Carries out probes. ``client_context`` gives the TLS context for engines with an https address."""

    def __init__(self, client_context: Callable[[], ssl.SSLContext]) -> None:
        self._client_context = client_context
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)

    async def ask(self, target: ProbeTarget, order: ProbeEndpoints) -> ProbeOutcome:
        """What came of all tries together; the first answer counts."""
        found = ProbeOutcome.UNASKED
        async with self._slots:
            for _ in range(order.tries):
                outcome = await self._try(target, order.timeout_seconds)
                if outcome is ProbeOutcome.ANSWERED:
                    return outcome
                if outcome is ProbeOutcome.REFUSED or found is ProbeOutcome.UNASKED:
                    found = outcome
        return found

    async def _try(self, target: ProbeTarget, timeout_seconds: float) -> ProbeOutcome:
        try:
            async with asyncio.timeout(timeout_seconds):
                status = await self._status(target)
        except TimeoutError:
            return ProbeOutcome.SILENT
        except (ValueError, asyncio.LimitOverrunError, ssl.SSLError):
            return ProbeOutcome.REFUSED  # something is there, and it is no engine
        except OSError as error:
            if error.errno in _OURS:
                return ProbeOutcome.UNASKED
            # Several addresses of one name that all turned us down come as one error without a number.
            said_no = isinstance(error, ConnectionError) or error.errno is None
            return ProbeOutcome.REFUSED if said_no else ProbeOutcome.SILENT
        return ProbeOutcome.ANSWERED if status < 500 else ProbeOutcome.REFUSED

    async def _status(self, target: ProbeTarget) -> int:
        """Status of the answer. Raises OSError or ValueError when there is none."""
        parts = urlsplit(target.url)
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        places = await places_of(parts.hostname or "", port, target.ranges)
        reader, writer = await asyncio.open_connection(
            places[0],
            port,
            ssl=self._client_context() if secure else None,
            server_hostname=parts.hostname if secure else None,
            limit=_MAX_STATUS_LINE_BYTES,
        )
        try:
            writer.write(_request(target, parts.netloc))
            line = await reader.readuntil(b"\r\n")
            found = _STATUS_LINE.match(line)
            if found is None:
                raise ValueError("not HTTP")
            return int(found[1])
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("closed before an answer") from error
        finally:
            writer.close()


def _request(target: ProbeTarget, netloc: str) -> bytes:
    path = _PATHS.get(EngineKind(target.kind), "/health") if target.kind in set(EngineKind) else "/health"
    lines = [f"GET {path} HTTP/1.1", f"Host: {netloc}", "Connection: close", "User-Agent: headrace-router"]
    if target.api_key and "\r" not in target.api_key and "\n" not in target.api_key:
        lines.append(f"Authorization: Bearer {target.api_key}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
