"""A steady stream of chat requests from one city, with a line about it every few seconds.

Environment: LOAD_ROUTERS (base URLs, nearest first), LOAD_KEY_FILE (the tenant key), LOAD_CITY, LOAD_RATE (requests a second),
LOAD_REPORT_SECONDS. Runs until SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path

from headrace.client import AnswerBroken, Client, Limits, RoutersFailed

MODEL = "llama-3.1-8b"


class Load:
    def __init__(self, client: Client, city: str) -> None:
        self._client = client
        self._city = city
        self._rng = random.Random(city)  # noqa: S311 - the same load in every run
        self.counts: Counter[str] = Counter()
        self.regions: Counter[str] = Counter()
        self.nodes: Counter[str] = Counter()

    async def one(self) -> None:
        """Send one request and note what became of it."""
        self.counts["sent"] += 1
        number = self._rng.randrange(1000)
        payload = {
            "model": MODEL,
            "max_tokens": 16,
            "messages": [
                {"role": "user", "content": f"Question {number} from {self._city}: how does water find its way?"}
            ],
        }
        headers = {"x-session-id": f"{self._city}-{number % 20}"}
        try:
            answer = await self._client.post("/v1/chat/completions", payload, headers=headers)
        except (RoutersFailed, AnswerBroken):
            self.counts["failed"] += 1
            return
        self.counts["ok" if answer.status == 200 else f"status {answer.status}"] += 1
        self.counts["retried"] += answer.retries
        if answer.status == 200:
            self.regions[answer.headers.get("x-headrace-region", "unknown")] += 1
            self.nodes[answer.headers.get("x-headrace-node", "unknown")] += 1

    async def run(self, rate: float, stop: asyncio.Event) -> None:
        """Start requests on time, whatever became of those before, until ``stop``; then wait for what is under way."""
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                group.create_task(self.one())
                try:
                    async with asyncio.timeout(self._rng.expovariate(rate)):
                        await stop.wait()
                except TimeoutError:
                    continue

    def report(self) -> str:
        line = {"city": self._city, **self.counts, "regions": dict(self.regions), "nodes": dict(self.nodes)}
        return json.dumps(line)


async def report(load: Load, seconds: float, stop: asyncio.Event) -> None:
    while not stop.is_set():
        try:
            async with asyncio.timeout(seconds):
                await stop.wait()
        except TimeoutError:
            sys.stdout.write(load.report() + "\n")
            sys.stdout.flush()


async def main(key: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    routers = [url.strip() for url in os.environ["LOAD_ROUTERS"].split(",")]
    async with Client(routers, key, limits=Limits(first_byte_seconds=20.0)) as client:
        load = Load(client, os.environ["LOAD_CITY"])
        async with asyncio.TaskGroup() as group:
            group.create_task(report(load, float(os.environ.get("LOAD_REPORT_SECONDS", "5")), stop))
            await load.run(float(os.environ.get("LOAD_RATE", "5")), stop)
    sys.stdout.write(load.report() + "\n")


if __name__ == "__main__":
    asyncio.run(main(Path(os.environ["LOAD_KEY_FILE"]).read_text().strip()))
