"""One connection at a time to one of the control planes, and the rhythm of trying again. Used by the watch and the report."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import grpc

from fleet.errors import DigestMismatch, HeadraceError, StaleVersion, Unavailable
from fleet.process.logs import get_logger
from regional.sync.addresses import Target, resolve
from regional.sync.backoff import Backoff

DEFAULT_PORT = 7611
FIRST_RETRY_SECONDS = 0.2
LONGEST_RETRY_SECONDS = 5.0
REFUSED_RETRY_SECONDS = 30.0
"""Ceiling when our token is refused: asking often would not help, and a rotated token file still works soon."""

ChannelFactory = Callable[[Target], grpc.aio.Channel]
Session = Callable[[grpc.aio.Channel], Awaitable[None]]
"""Talks over a channel until something breaks, which it tells by raising."""

_log = get_logger("uplink")
_REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class Uplink:
    """Runs sessions against ``listed`` control planes for ever, a different address after each failure."""

    def __init__(
        self,
        listed: Sequence[str],
        channels: ChannelFactory,
        rng: random.Random,
        on_failure: Callable[[str, str], None],
    ) -> None:
        """``on_failure(address, why)`` is called for each session that ended; ``why`` holds no secret."""
        self._listed = listed
        self._channels = channels
        self._rng = rng
        self._on_failure = on_failure
        self._targets: list[Target] = []

    async def run(self, session: Session) -> None:
        """Until cancelled. A session that lasted longer than the backoff's ceiling starts the backoff afresh."""
        backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, self._rng)
        refused = Backoff(1.0, REFUSED_RETRY_SECONDS, self._rng)
        loop = asyncio.get_running_loop()
        while True:
            target = await self._next()
            started = loop.time()
            denied = False
            if target is None:
                why = "no control plane's name resolves"
            else:
                why, denied = await self._one(session, target)
            self._on_failure(target.address if target else ",".join(self._listed), why)
            if loop.time() - started > LONGEST_RETRY_SECONDS:
                backoff.succeeded()
                refused.succeeded()
            await asyncio.sleep((refused if denied else backoff).failed())

    async def _next(self) -> Target | None:
        """The next address; names are looked up again each time all their addresses have been tried."""
        if not self._targets:
            self._targets = await resolve(self._listed, DEFAULT_PORT, self._rng)
        return self._targets.pop() if self._targets else None

    async def _one(self, session: Session, target: Target) -> tuple[str, bool]:
        channel = self._channels(target)
        try:
            await session(channel)
            return "the control plane ended the stream", False
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}", error.code() in _REFUSED
        except TimeoutError:
            return "nothing was heard from the control plane in time", False
        except (StaleVersion, DigestMismatch, Unavailable) as error:
            return str(error), False
        except HeadraceError as error:
            return f"{type(error).__name__}: {error}", False
        except Exception as error:  # noqa: BLE001  # whatever came, or a fault of ours in reading it: the router goes on
            _log.error("session_fault", exc_info=error)
            return f"a fault in reading what came: {type(error).__name__}", False
        finally:
            await channel.close(None)
