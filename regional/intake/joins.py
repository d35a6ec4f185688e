"""How a node gets its identity: from the control plane, or from this router when there is none."""

from __future__ import annotations

import asyncio
import hmac
import random
import secrets
from collections.abc import Callable, Sequence
from typing import Protocol

import grpc

from fleet.clock import Clock
from fleet.errors import HeadraceError
from fleet.intent import Intent
from fleet.resources.file import uid_of
from fleet.wire.headrace.v1 import region_pb2, region_pb2_grpc
from fleet.wire.identity import LIFETIME_SECONDS, InvalidIdentity, NodeIdentity, sign_identity, verify_identity
from regional.sync.addresses import resolve
from regional.sync.uplink import DEFAULT_PORT, ChannelFactory

FORWARD_TIMEOUT_SECONDS = 5.0
_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class JoinRefused(HeadraceError):
    """A join that is answered with ``code``; the text is for whoever runs the agent."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        self.code = code
        super().__init__(message)


class Joins(Protocol):
    async def join(self, request: region_pb2.NodeJoinRequest, *, from_loopback: bool) -> region_pb2.NodeJoinResponse:
        """The node's new identity. Raises JoinRefused."""
        ...


class ForwardedJoins:
    """Sends joins on to a control plane, which consumes the token once. Never keeps or logs a token."""

    def __init__(
        self, listed: Sequence[str], channels: ChannelFactory, token: Callable[[], str], region: str, rng: random.Random
    ) -> None:
        self._listed = listed
        self._channels = channels
        self._token = token
        self._region = region
        self._rng = rng

    async def join(self, request: region_pb2.NodeJoinRequest, *, from_loopback: bool) -> region_pb2.NodeJoinResponse:
        request.region = self._region
        if not request.attempt:  # of an older agent: what is tried again below must still be one join
            request.attempt = secrets.token_hex(16)
        for target in await resolve(self._listed, DEFAULT_PORT, self._rng):
            channel = self._channels(target)
            stub = region_pb2_grpc.RegionServiceStub(channel)  # type: ignore[no-untyped-call]
            try:
                answer: region_pb2.NodeJoinResponse = await stub.Join(
                    request,
                    timeout=FORWARD_TIMEOUT_SECONDS,
                    metadata=(("authorization", f"Bearer {self._token()}"),),
                )
                return answer
            except grpc.aio.AioRpcError as error:
                # Whether it was reached nobody knows; a token it spent on this attempt answers the attempt again.
                if error.code() not in _NO_ANSWER:
                    raise JoinRefused(error.code(), error.details() or "the control plane refused the join") from None
            finally:
                await channel.close(None)
        raise JoinRefused(
            grpc.StatusCode.UNAVAILABLE,
            "no control plane can be reached; a node joins when one is back, and keeps running",
        )


class LocalJoins:
    """Standalone: the router itself vouches for nodes, with a key of its own."""

    def __init__(
        self,
        private_key: bytes,
        public_keys: Sequence[bytes],
        join_token: Callable[[], str],
        intent: Callable[[], Intent],
        clock: Clock,
    ) -> None:
        """``join_token()`` empty: nodes may join over loopback only, without one."""
        self._private_key = private_key
        self._public_keys = public_keys
        self._join_token = join_token
        self._intent = intent
        self._clock = clock

    async def join(self, request: region_pb2.NodeJoinRequest, *, from_loopback: bool) -> region_pb2.NodeJoinResponse:
        wall = self._clock.wall()
        if request.identity and not request.join_token:
            identity = await asyncio.to_thread(self._renewed, request.identity, wall)
        else:
            self._check_token(request.join_token, from_loopback)
            identity = self._new(request, wall)
        signed = await asyncio.to_thread(sign_identity, identity, self._private_key)
        return region_pb2.NodeJoinResponse(
            node_uid=identity.node_uid, identity=signed, expires_in_seconds=round(LIFETIME_SECONDS)
        )

    def _check_token(self, shown: str, from_loopback: bool) -> None:
        wanted = self._join_token()
        if wanted:
            if not hmac.compare_digest(shown.encode(), wanted.encode()):
                raise JoinRefused(grpc.StatusCode.UNAUTHENTICATED, "the join token is not the one this router expects")
        elif not from_loopback:
            raise JoinRefused(
                grpc.StatusCode.UNAUTHENTICATED,
                "this router takes agents from other machines only with a join token; set HEADRACE_JOIN_TOKEN on both",
            )

    def _renewed(self, shown: str, wall: float) -> NodeIdentity:
        try:
            old = verify_identity(shown, self._public_keys, wall)
        except InvalidIdentity as error:
            raise JoinRefused(grpc.StatusCode.UNAUTHENTICATED, str(error)) from None
        return NodeIdentity(old.node_uid, old.node_name, old.zone, old.region, wall, wall + LIFETIME_SECONDS)

    def _new(self, request: region_pb2.NodeJoinRequest, wall: float) -> NodeIdentity:
        intent = self._intent()
        zone = intent.zones.get(request.zone)
        if zone is None or zone.region != intent.region:
            names = ", ".join(sorted(z.name for z in intent.zones.values() if z.region == intent.region)) or "none"
            raise JoinRefused(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"zone {request.zone[:80]!r} is not one of region {intent.region} (there: {names})",
            )
        if not 0 < len(request.node_name) <= 253:
            raise JoinRefused(grpc.StatusCode.INVALID_ARGUMENT, "a node needs a name of at most 253 characters")
        declared = intent.nodes.get(request.node_name)
        if declared is not None and declared.zone != zone.name:
            raise JoinRefused(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"node {request.node_name} is written down for zone {declared.zone}, not {zone.name}",
            )
        # By name, as in the file: names are unique in a fleet, and a node that lost its state directory is the same node.
        uid = declared.uid if declared is not None else uid_of("node", request.node_name)
        return NodeIdentity(uid, request.node_name, zone.name, intent.region, wall, wall + LIFETIME_SECONDS)
