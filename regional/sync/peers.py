"""Probes every peer region each second over the path that hops take: distance, readiness, headroom.

So a dead region is seen without the centre. Addresses come from the centre's observed aggregates while there are any, and from
the regions' ``public_url`` besides.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
import msgspec

from fleet.capacity import CapacityRow, RegionObserved
from fleet.clock import Clock
from fleet.intent import Intent
from regional.fleetview.peers import PeerProbe
from regional.gateway.hop import HEADER, PROBE_PATH, sign_probe

INTERVAL_SECONDS = 1.0
TIMEOUT_SECONDS = 0.9
LATE_SECONDS = 0.1
"""A probe that ends this much later than its time limit says more about us than about the peer."""
MAX_ROUTERS = 8
"""Of one region, probed side by side."""
MAX_ROWS = 20_000
MAX_ANSWER_BYTES = 4 * 1024 * 1024
OBSERVED_ADDRESSES_SECONDS = 60.0
"""Addresses the centre named are tried this long after it last did."""
RTT_KEPT_SECONDS = 10.0
_SMOOTHING = 0.3

_Number = TypeVar("_Number", int, float)


class _Row(msgspec.Struct, array_like=True, frozen=True):
    zone: str
    model: str
    endpoints_ready: int
    endpoints_total: int
    prefill_tokens_per_second: float | None = None
    decode_tokens_per_second: float | None = None
    inflight: int = 0
    waiting: int | None = None
    expected_wait_seconds: float | None = None
    kv_free_tokens: int | None = None


class PeerAnswer(msgspec.Struct, frozen=True):
    """What a router says of itself to a peer that probes it."""

    region: str
    router: str
    ready: bool
    rows: list[_Row] = []


_decoder = msgspec.json.Decoder(PeerAnswer)


def peer_status(region: str, router_uid: str, ready: bool, rows: Iterable[CapacityRow]) -> dict[str, object]:
    """This router's own answer, for the gateway to send."""
    listed = [
        [
            r.zone,
            r.model,
            r.endpoints_ready,
            r.endpoints_total,
            r.prefill_tokens_per_second,
            r.decode_tokens_per_second,
            r.inflight,
            r.waiting,
            r.expected_wait_seconds,
            r.kv_free_tokens,
        ]
        for r in rows
    ]
    return {"region": region, "router": router_uid, "ready": ready, "rows": listed}


@dataclass(slots=True)
class _Known:
    """What the centre last said about a region's addresses."""

    addresses: tuple[str, ...]
    at: float


@dataclass(slots=True)
class _Distance:
    rtt_seconds: float
    at: float
    samples: int = 1

    def add(self, rtt_seconds: float, now: float) -> None:
        """The first sample opened a connection, which takes two round trips: the second one replaces it."""
        weight = 1.0 if self.samples == 1 else _SMOOTHING
        self.rtt_seconds += weight * (rtt_seconds - self.rtt_seconds)
        self.at = now
        self.samples += 1


class Peers:
    """Runs in every router. ``sink(region, probe)`` gets each outcome."""

    def __init__(
        self,
        intent: Callable[[], Intent],
        sink: Callable[[str, PeerProbe], None],
        clock: Clock,
        rng: random.Random,
        client_context: Callable[[], ssl.SSLContext],
    ) -> None:
        self._intent = intent
        self._sink = sink
        self._clock = clock
        self._rng = rng
        self._client_context = client_context
        self._observed: dict[str, _Known] = {}
        self._rtt: dict[str, _Distance] = {}

    def note_observed(self, observed: RegionObserved) -> None:
        """The centre's word about a region: where its routers are."""
        addresses = tuple(a for router in observed.routers for a in router.http_addresses)
        if addresses:
            self._observed[observed.region] = _Known(addresses, self._clock.monotonic())

    def rtts(self, now: float) -> list[tuple[str, float]]:
        """Smoothed round trip to each peer region that answered lately."""
        return [(region, d.rtt_seconds) for region, d in sorted(self._rtt.items()) if now - d.at < RTT_KEPT_SECONDS]

    def addresses(self, region: str) -> tuple[str, ...]:
        """Base URLs to probe, those the centre named first."""
        known = self._observed.get(region)
        named: tuple[str, ...] = ()
        if known is not None and self._clock.monotonic() - known.at < OBSERVED_ADDRESSES_SECONDS:
            named = known.addresses
        place = self._intent().regions.get(region)
        public = (place.public_url,) if place is not None and place.public_url else ()
        return tuple(dict.fromkeys((*named, *public)))[:MAX_ROUTERS]

    async def run(self) -> None:
        """Probe until cancelled. A round that is slow does not hold up the next: each is bounded by its time limit."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        connector = aiohttp.TCPConnector(limit=0, limit_per_host=2, keepalive_timeout=30.0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector, trust_env=False) as session:
            while True:
                intent = self._intent()
                regions = [name for name in intent.regions if name != intent.region]
                for gone in self._observed.keys() - intent.regions.keys():
                    del self._observed[gone]
                started = self._clock.monotonic()
                await asyncio.gather(
                    *(
                        self._probe(session, intent, region, address)
                        for region in regions
                        for address in self.addresses(region)
                    )
                )
                passed = self._clock.monotonic() - started
                await asyncio.sleep(max(0.05, INTERVAL_SECONDS * self._rng.uniform(0.9, 1.0) - passed))

    async def _probe(self, session: aiohttp.ClientSession, intent: Intent, region: str, address: str) -> None:
        started = self._clock.monotonic()
        answer = await self._ask(session, intent, region, address)
        now = self._clock.monotonic()
        if answer is None and now - started > TIMEOUT_SECONDS + LATE_SECONDS:
            return  # this router stood still meanwhile: the answer may have been there
        if answer is None or answer.region != region:
            self._sink(region, PeerProbe(address, ok=False))
            return
        rtt = now - started
        distance = self._rtt.get(region)
        if distance is None or now - distance.at > RTT_KEPT_SECONDS:
            distance = self._rtt[region] = _Distance(rtt, now)
        else:
            distance.add(rtt, now)
        rows = tuple(_row(r) for r in answer.rows[:MAX_ROWS])
        self._sink(region, PeerProbe(address, ok=True, ready=answer.ready, rtt_seconds=distance.rtt_seconds, rows=rows))

    async def _ask(
        self, session: aiohttp.ClientSession, intent: Intent, region: str, address: str
    ) -> PeerAnswer | None:
        """None when there is no usable answer in time."""
        keys = intent.secrets.hop_keys
        if not keys:
            return None
        token = sign_probe(intent.region, region, keys[0], nonce=secrets.token_hex(16), wall=self._clock.wall())
        try:
            async with session.get(
                address.rstrip("/") + PROBE_PATH.decode(),
                headers={HEADER.decode(): token.decode()},
                allow_redirects=False,
                ssl=self._client_context() if address.startswith("https:") else False,
            ) as response:
                if response.status != 200:
                    return None
                return _decoder.decode(await _bounded(response))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, msgspec.MsgspecError):
            return None  # no answer, for whatever reason: that is the finding


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    """The body. Raises ValueError when it is larger than any answer of ours."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise ValueError("the answer is too large")
    return bytes(body)


def _row(row: _Row) -> CapacityRow:
    """The row with numbers that can be true, as when the centre passes it on; what cannot be is unknown (rel-S13)."""
    return CapacityRow(
        row.zone,
        row.model,
        max(0, row.endpoints_ready),
        max(0, row.endpoints_total),
        _positive(row.prefill_tokens_per_second),
        _positive(row.decode_tokens_per_second),
        max(0, row.inflight),
        _positive(row.waiting),
        _positive(row.expected_wait_seconds),
        _positive(row.kv_free_tokens),
    )


def _positive(value: _Number | None) -> _Number | None:
    return value if value is not None and value >= 0 else None
