"""Joining: with a token once, after that with an identity that is renewed at two thirds of its life."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from agents.backoff import Backoff, retry_after_seconds
from agents.state import StateFiles, StoredIdentity
from fleet.clock import Clock
from fleet.process.grpc_server import make_channel
from fleet.process.logs import get_logger
from fleet.process.tls import TlsFiles
from fleet.wire.headrace.v1 import agent_pb2_grpc, region_pb2

log = get_logger("agents.membership")

RENEW_AT_SHARE = 2 / 3
CALL_TIMEOUT_SECONDS = 5.0
REJOIN_SPACING_SECONDS = 60.0
"""Asked to join again sooner than this, a node backs off further each time."""


@dataclass(frozen=True, slots=True)
class Joining:
    """What a node says of itself when it joins."""

    node_name: str
    zone: str
    region: str


class Membership:
    """Gets an identity and keeps it alive. ``identity`` is what links authenticate with; it only ever gets newer."""

    def __init__(
        self,
        who: Joining,
        files: StateFiles,
        *,
        join_token: Callable[[], str],
        gpu_uuids: Callable[[], Sequence[str]],
        routers: Callable[[], Sequence[str]],
        clock: Clock,
        tls: TlsFiles | None = None,
        backoff_max_seconds: float = 10.0,
    ) -> None:
        """``routers`` gives the addresses to try, those that work first."""
        self._who = who
        self._files = files
        self._join_token = join_token
        self._gpu_uuids = gpu_uuids
        self._routers = routers
        self._clock = clock
        self._tls = tls
        self._backoff = Backoff(backoff_max_seconds)
        self.identity: StoredIdentity | None = files.identity()
        self.problem = "" if self.identity else "has not joined yet"
        self._joined = asyncio.Event()
        self._rejoin = asyncio.Event()
        self._obtained_at = float("-inf")
        self._attempt = secrets.token_hex(16)
        if self.identity is not None:
            self._joined.set()

    async def joined(self) -> StoredIdentity:
        """The identity, as soon as there is one."""
        while self.identity is None:
            await self._joined.wait()
        return self.identity

    def rejoin(self) -> None:
        """A router does not accept the present identity: ask for another one."""
        self._rejoin.set()

    async def run(self) -> None:
        """Join, renew, and join again when told to, until cancelled."""
        while True:
            if self.identity is None or self._rejoin.is_set():
                if self._clock.monotonic() - self._obtained_at < REJOIN_SPACING_SECONDS:
                    await asyncio.sleep(self._backoff.next_delay(random))  # a router that is never content
                else:
                    self._backoff.reset()
                await self._obtain()
                continue
            # The machine's own clock on both sides; a clock that jumped ahead only renews early.
            wait = self.identity.renew_wall(RENEW_AT_SHARE) - self._clock.wall()
            try:
                async with asyncio.timeout(min(max(wait, 0.0), 3600.0)):
                    await self._rejoin.wait()
            except TimeoutError:
                if self._clock.wall() >= self.identity.renew_wall(RENEW_AT_SHARE):
                    await self._obtain()

    async def _obtain(self) -> None:
        """Ask the routers in turn until one hands out an identity. Never more than one request at a time, with full jitter."""
        while True:
            wait_at_least = 0.0
            for address in self._routers():
                for request in self._requests():
                    try:
                        response = await self._call(address, request)
                    except grpc.aio.AioRpcError as error:
                        self._note(f"{address}: {error.code().name}: {error.details()}")
                        wait_at_least = max(wait_at_least, retry_after_seconds(error))
                        if error.code() is grpc.StatusCode.UNAVAILABLE:
                            break  # the other way of asking would not reach it either
                        continue
                    if not response.node_uid or response.expires_in_seconds <= 0:
                        self._note(f"{address}: the answer to joining holds no identity")
                        continue
                    await self._keep(response)
                    return
            await asyncio.sleep(self._backoff.next_delay(random, wait_at_least))

    def _requests(self) -> list[region_pb2.NodeJoinRequest]:
        """Ways of asking: with what we have, then with a token (which may be empty: over loopback a router may not want one)."""
        held = self.identity
        gpu_uuids = list(self._gpu_uuids())

        def asked(*, join_token: str = "", identity: str = "") -> region_pb2.NodeJoinRequest:
            return region_pb2.NodeJoinRequest(
                join_token=join_token,
                identity=identity,
                node_name=self._who.node_name,
                zone=self._who.zone,
                region=self._who.region,
                gpu_uuids=gpu_uuids,
                attempt=self._attempt,
                node_uid=held.node_uid if held else "",
            )

        token = self._join_token()
        ways = [asked(identity=held.token)] if held else []
        # The identity goes along: that it was this very node is believed of nobody who cannot show it.
        ways.append(asked(join_token=token, identity=held.token if held and token else ""))
        return ways

    async def _call(self, address: str, request: region_pb2.NodeJoinRequest) -> region_pb2.NodeJoinResponse:
        async with make_channel(address, tls=self._tls) as channel:
            stub = agent_pb2_grpc.AgentServiceStub(channel)  # type: ignore[no-untyped-call]
            response: region_pb2.NodeJoinResponse = await stub.Join(request, timeout=CALL_TIMEOUT_SECONDS)
            return response

    async def _keep(self, response: region_pb2.NodeJoinResponse) -> None:
        wall = self._clock.wall()
        identity = StoredIdentity(response.node_uid, response.identity, wall, wall + response.expires_in_seconds)
        try:
            await asyncio.to_thread(self._files.keep_identity, identity)
        except OSError as error:  # the token is spent: what it got is good while this process lives
            log.error("identity_not_kept", reason=error.strerror)
        self.identity = identity
        self.problem = ""
        self._rejoin.clear()
        self._attempt = secrets.token_hex(16)
        self._obtained_at = self._clock.monotonic()
        self._joined.set()
        log.info("joined", node_uid=identity.node_uid, valid_seconds=response.expires_in_seconds)

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("join_failed", reason=problem)
        self.problem = problem
