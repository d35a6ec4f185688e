"""Interchangeable replicas of one model in this region, as columns: one position per endpoint, zones side by side."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from regional.fleetview.endpoint import Endpoint
from regional.fleetview.standing import OUT
from regional.request.steps import EndpointTarget

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

DEFAULT_INPUT_TOKENS = 512.0
DEFAULT_OUTPUT_TOKENS = 256.0
_MEAN_WEIGHT = 0.02


def stable_hash(text: str) -> int:
    """64 bits that every router and every run agrees on."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class ZoneSlice(NamedTuple):
    """Positions ``start`` to ``stop`` (exclusive) of a pool are the endpoints of ``zone``."""

    zone: str
    start: int
    stop: int


class Seat:
    """An endpoint in the pool of one of its models, with the numbers its price is made of."""

    __slots__ = (
        "endpoint",
        "model",
        "outer",
        "own",
        "pool",
        "position",
        "prefill_floor",
        "prefill_per_token",
        "served_as",
        "signalled",
        "standing",
        "step",
        "step_base",
        "step_per_context_token",
        "step_per_sequence",
        "target",
        "wait",
        "weight",
    )

    def __init__(self, endpoint: Endpoint, model: str, served_as: str, pool: Pool) -> None:
        self.endpoint = endpoint
        self.model = model
        self.served_as = served_as
        self.pool = pool
        self.position = -1
        """Place in the pool's columns; -1 until the pool is laid out with it."""
        self.own = 0
        """Requests of ours for this model there."""
        self.standing = OUT
        """Tier, added to the cost (``standing.py``)."""
        self.signalled = False
        """An unproven sign speaks against it; ignored when too few of the pool are without one."""
        self.outer = 1.0
        """Factor for silence of its agent and an unknown product; the sample's factor comes on top."""
        self.weight = 1.0
        """Nominal speed; constant while the product is, so that sessions stay where they are."""
        self.prefill_floor = 0.0
        self.prefill_per_token = 0.0
        self.step_base = 0.0
        self.step_per_sequence = 0.0
        self.step_per_context_token = 0.0
        self.wait = 0.0
        self.step = 0.0
        self.target: EndpointTarget | None = None

    def order(self) -> tuple[str, str]:
        """Zones side by side, and the same order at every router."""
        return (self.endpoint.zone, self.endpoint.uid)


class Pool:
    """Columns are written by pricing only, and read by decisions."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.members: dict[str, Seat] = {}
        """By endpoint uid."""
        self.seats: list[Seat] = []
        """By position. May hold seats that have left since (their cost is ``OUT``) until the next layout."""
        self.zones: tuple[ZoneSlice, ...] = ()
        self.changed = False
        """Members have come or gone since the last layout."""
        self.laid_out_at = -1e18
        self.layout = 0
        """Rises with every layout; caches by position hold only within one."""
        self.mean_input_tokens = DEFAULT_INPUT_TOKENS
        self.mean_output_tokens = DEFAULT_OUTPUT_TOKENS
        self.typical_prefill = 1.0
        self.typical_decode = 1.0
        """Paces that endpoints of this pool have shown lately, as a geometric mean: what is expected of those not yet seen."""
        self.usable = 0
        """Seats that are not ``OUT``..."""
        self.signals = 0
        """... and those of them with an unproven sign against them."""
        self.panic = False
        self.ejected = 0
        self.masks: dict[tuple[str, object], Bools | None] = {}
        """Filters' answers that hold until the next layout."""
        self._allocate(0)

    def _allocate(self, n: int) -> None:
        self.fixed: Floats = np.full(n, OUT)
        """Seconds whatever the request: tier, network, wait."""
        self.per_input: Floats = np.zeros(n)
        """Seconds for each token of the prompt."""
        self.per_output: Floats = np.zeros(n)
        """Seconds for each token of the answer."""
        self.inflight: Floats = np.zeros(n)
        self.weights: Floats = np.ones(n)
        self.hashes: npt.NDArray[np.uint64] = np.zeros(n, dtype=np.uint64)
        self.scratch_a: Floats = np.zeros(n)
        self.scratch_b: Floats = np.zeros(n)

    def add(self, endpoint: Endpoint, served_as: str) -> Seat:
        """A seat for the endpoint; it can be chosen after the next layout."""
        seat = Seat(endpoint, self.model, served_as, self)
        self.members[endpoint.uid] = seat
        self.changed = True
        return seat

    def remove(self, seat: Seat) -> None:
        """Take a seat out at once; its column goes at the next layout."""
        self.members.pop(seat.endpoint.uid, None)
        if 0 <= seat.position < len(self.seats) and self.seats[seat.position] is seat:
            self.fixed[seat.position] = OUT
        seat.position = -1
        self.changed = True

    def lay_out(self, now: float) -> list[Seat]:
        """Place all members by zone and uid; those that had a place take their prices along. Returns those that have none yet."""
        before = self._columns()
        seats = self.seats = sorted(self.members.values(), key=Seat.order)
        was = np.fromiter((s.position for s in seats), dtype=np.intp, count=len(seats))
        self._allocate(len(seats))
        kept = was >= 0
        for old, new in zip(before, self._columns(), strict=True):
            new[kept] = old[was[kept]]
        slices: list[ZoneSlice] = []
        start = 0
        zone = seats[0].endpoint.zone if seats else ""
        for position, seat in enumerate(seats):
            seat.position = position
            if seat.endpoint.zone != zone:
                slices.append(ZoneSlice(zone, start, position))
                zone, start = seat.endpoint.zone, position
        if seats:
            slices.append(ZoneSlice(zone, start, len(seats)))
        fresh = [seats[i] for i in np.flatnonzero(~kept)]
        for seat in fresh:
            self.hashes[seat.position] = stable_hash(seat.endpoint.uid)
        self.zones = tuple(slices)
        self.masks.clear()
        self.changed = False
        self.laid_out_at = now
        self.layout += 1
        return fresh

    def _columns(self) -> tuple[npt.NDArray[np.generic], ...]:
        """All that a layout carries over by position."""
        return (
            self.fixed,
            self.per_input,
            self.per_output,
            self.inflight,
            self.weights,
            self.hashes,
        )

    def learn_paces(self, prefill: float, decode: float) -> None:
        """An endpoint has just shown these paces."""
        self.typical_prefill *= (prefill / self.typical_prefill) ** _MEAN_WEIGHT
        self.typical_decode *= (decode / self.typical_decode) ** _MEAN_WEIGHT

    def learn_lengths(self, input_tokens: float | None, output_tokens: float | None) -> None:
        """Keep running means of prompt and answer length."""
        if input_tokens is not None:
            self.mean_input_tokens += _MEAN_WEIGHT * (input_tokens - self.mean_input_tokens)
        if output_tokens is not None:
            self.mean_output_tokens += _MEAN_WEIGHT * (output_tokens - self.mean_output_tokens)
