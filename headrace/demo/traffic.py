"""Clients in three cities at a constant rate, and what became of each of their requests."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from agents.accelerators.simulated import SimulatedDevices
from headrace.client import AnswerBroken, Client, Limits, RoutersFailed
from headrace.demo.layout import MODEL, Layout, RegionLayout
from headrace.demo.network import gpu_place

CHAT = "/v1/chat/completions"
_LIMITS = Limits(
    connect_seconds=1.0, first_byte_seconds=20.0, idle_seconds=5.0, probe_seconds=0.2, probe_max_seconds=0.5
)
_STREAMED_SHARE = 0.3
_SESSION_SHARE = 0.3
_SESSIONS_PER_CITY = 12
_TOPICS = ("dams", "locks", "weirs", "tides", "rain", "snow", "turbines", "canals")
_KEPT = 200_000


@dataclass(frozen=True, slots=True)
class Served:
    """One finished request. Times are on the loop's clock."""

    started: float
    ended: float
    city: str
    outcome: str
    """``ok``; ``failed``: no byte came, or an error did; ``interrupted``: the answer broke off after its first byte."""
    retries: int
    region: str
    zone: str
    node: str
    gpu: str
    """Place of the GPU as ``node/gpuN``."""
    detail: str = ""

    def place(self, level: str) -> str:
        return str(getattr(self, level))


class Traffic:
    """Open-loop load: requests start on time, whatever became of those before."""

    def __init__(
        self, plan: Layout, key: str, *, rate: float, max_tokens: int = 16, rng: random.Random | None = None
    ) -> None:
        self._plan = plan
        self._key = key
        self._rate = rate
        self._max_tokens = max_tokens
        self._rng = rng or random.Random(7)  # noqa: S311  the same load in every run
        self._requests: dict[asyncio.Task[None], float] = {}
        """Under way, and when each started."""
        self._gpus = dict(_gpu_names(plan))
        self.done: deque[Served] = deque(maxlen=_KEPT)
        self.started = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Send until ``stop`` is set, then wait for what is under way."""
        async with AsyncExitStack() as stack:
            cities = []
            for region in self._plan.regions:
                client = Client(self._plan.ranked(region), self._key, limits=_LIMITS)
                cities.append((region, await stack.enter_async_context(client)))
            stack.push_async_callback(self._cancel)
            async with asyncio.TaskGroup() as group:
                for region, client in cities:
                    group.create_task(self._city(region, client, stop))
            if self._requests:
                await asyncio.wait(tuple(self._requests))

    def sent_since(self, since: float) -> int:
        """Requests that were started since, finished or not."""
        finished = 0
        for served in reversed(self.done):
            if served.ended < since:
                break
            finished += served.started >= since
        return finished + sum(started >= since for started in self._requests.values())

    async def finished_before(self, until: float) -> None:
        """Wait for every request that was started before ``until``."""
        if waited := [task for task, started in self._requests.items() if started < until]:
            await asyncio.wait(waited)

    def set_rate(self, rate: float) -> None:
        """Requests a second over all cities, from now on."""
        self._rate = rate

    async def _cancel(self) -> None:
        for task in self._requests:
            task.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    async def _city(self, region: RegionLayout, client: Client, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not stop.is_set():
            # Sleeps catch up: after a late wake-up several requests go out at once, so that the rate holds.
            await asyncio.sleep(max(0.0, due - loop.time()))
            due += self._rng.expovariate(self._rate / len(self._plan.regions))
            self.started += 1
            task = loop.create_task(self._one(region, client))
            self._requests[task] = loop.time()
            task.add_done_callback(self._requests.pop)

    async def _one(self, region: RegionLayout, client: Client) -> None:
        rng, loop = self._rng, asyncio.get_running_loop()
        headers = {"X-Forwarded-For": rng.choice(region.client_addresses)}
        topic = rng.choice(_TOPICS)
        if rng.random() < _SESSION_SHARE:
            session = rng.randrange(_SESSIONS_PER_CITY)
            headers["x-session-id"] = f"{region.city}-{session}"
            topic = _TOPICS[session % len(_TOPICS)]
        question = f"Question {rng.randrange(10_000)}: what should one know about {topic}?"
        payload: dict[str, Any] = {
            "model": MODEL,
            "max_tokens": self._max_tokens,
            "messages": [
                {"role": "system", "content": f"You help people of {region.city} with water: {topic}. " * 8},
                {"role": "user", "content": question},
            ],
        }
        started = loop.time()
        if rng.random() < _STREAMED_SHARE:
            finished = await _streamed(client, payload | {"stream": True}, headers)
        else:
            finished = await _plain(client, payload, headers)
        outcome, retries, answer, detail = finished
        self.done.append(
            Served(
                started,
                loop.time(),
                region.city,
                outcome,
                retries,
                answer.get("x-headrace-region", ""),
                answer.get("x-headrace-zone", ""),
                answer.get("x-headrace-node", ""),
                self._gpus.get(answer.get("x-headrace-gpu", ""), ""),
                detail,
            )
        )


_Finished = tuple[str, int, Any, str]


async def _plain(client: Client, payload: dict[str, Any], headers: dict[str, str]) -> _Finished:
    try:
        answer = await client.post(CHAT, payload, headers=headers)
    except RoutersFailed as error:
        return "failed", len(error.attempts) - 1, {}, str(error)
    except AnswerBroken as error:
        return "interrupted", len(error.attempts) - 1, error.headers, str(error)
    if answer.status != 200:
        return "failed", answer.retries, answer.headers, f"{answer.status} {answer.body[:300].decode(errors='replace')}"
    return "ok", answer.retries, answer.headers, ""


async def _streamed(client: Client, payload: dict[str, Any], headers: dict[str, str]) -> _Finished:
    try:
        async with client.stream(CHAT, payload, headers=headers) as stream:
            tail = b""
            async for chunk in stream:
                tail = (tail + chunk)[-256:]
    except RoutersFailed as error:
        return "failed", len(error.attempts) - 1, {}, str(error)
    except AnswerBroken as error:
        return "interrupted", len(error.attempts) - 1, error.headers, str(error)
    if stream.status != 200:
        return "failed", stream.retries, stream.headers, f"{stream.status} {tail.decode(errors='replace')}"
    if not tail.endswith(b"data: [DONE]\n\n"):
        return "interrupted", stream.retries, stream.headers, tail.decode(errors="replace")
    return "ok", stream.retries, stream.headers, ""


def _gpu_names(plan: Layout) -> Iterable[tuple[str, str]]:
    """UUID of every simulated GPU, and what we call it."""
    for node in plan.nodes:
        uuids = SimulatedDevices(node.devices.removeprefix("simulated:"), node=node.name).uuids
        for engine in node.engines:
            yield uuids[engine.gpu], gpu_place(node.name, engine.gpu)


def shares(served: Iterable[Served], level: str) -> dict[str, float]:
    """Share of each place at a level (region, zone, node, gpu) among the requests that were answered."""
    counts = Counter(place for request in served if request.outcome == "ok" and (place := request.place(level)))
    total = sum(counts.values())
    return {place: round(count / total, 4) for place, count in sorted(counts.items())} if total else {}


def window(
    served: Iterable[Served], since: float, until: float, only: Callable[[Served], bool] = lambda _: True
) -> list[Served]:
    """Requests that started in [since, until)."""
    return [request for request in served if since <= request.started < until and only(request)]
