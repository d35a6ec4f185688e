"""What a person sees of the demo: a live table while it runs, a line per event, a summary at the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.demo.ladder import RungResult
from headrace.demo.layout import MODEL, Layout
from headrace.demo.stage import Credentials
from headrace.demo.traffic import Served, Traffic

_WINDOW_SECONDS = 2.0
_REFRESH_SECONDS = 0.5


class Show:
    """Writes to a console: live on a terminal, plain lines anywhere else."""

    def __init__(self, plan: Layout, console: Console) -> None:
        self._plan = plan
        self._console = console
        self._traffic: Traffic | None = None
        self._live: Live | None = None
        self._refresher: asyncio.Task[None] | None = None
        self._doing = "starting"

    async def __aenter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(self._picture(), console=self._console, auto_refresh=False, transient=True)
            self._live.start()
            self._refresher = asyncio.get_running_loop().create_task(self._refresh())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._refresher is not None:
            self._refresher.cancel()
            await asyncio.gather(self._refresher, return_exceptions=True)
        if self._live is not None:
            self._live.stop()

    def say(self, what: str) -> None:
        self._doing = what
        self._console.print(f"  {what}", highlight=False, soft_wrap=True)

    def follow(self, traffic: Traffic) -> None:
        """Show this traffic from now on."""
        self._traffic = traffic

    def result(self, result: RungResult) -> None:
        """One rung, in two lines."""
        mark = "[green]held[/]" if result.ok else "[red]did not hold[/]"
        counts = (
            f"{result.sent} sent, {result.failed} failed, {result.retried} retried, {result.interrupted} interrupted"
        )
        self._console.print(
            f"{result.name}: {mark}; {counts}; clear of {result.place} after {result.seconds_to_clear:.2f} s",
            highlight=False,
            soft_wrap=True,
        )
        for title, places in (("before", result.before), ("during", result.during), ("after", result.after)):
            self._console.print(f"  {title:7}{_places(places)}", highlight=False, soft_wrap=True)
        for line in (*result.faults, *result.examples):
            self._console.print(f"  [red]{line}[/]", highlight=False, soft_wrap=True)

    def summary(self, results: Sequence[RungResult], seconds: float) -> None:
        table = Table(title="Failover ladder", title_justify="left")
        for title in ("rung", "lost", "sent", "failed", "retried", "interrupted", "clear after", "verdict"):
            table.add_column(title, justify="left" if title in ("rung", "lost", "verdict") else "right")
        for r in results:
            verdict = "[green]held[/]" if r.ok else "[red]did not hold[/]"
            counts = (str(n) for n in (r.sent, r.failed, r.retried, r.interrupted))
            table.add_row(r.name, r.place, *counts, f"{r.seconds_to_clear:.2f} s", verdict)
        self._console.print(table)
        self._console.print(f"{seconds:.0f} s in all", highlight=False, soft_wrap=True)

    def how_to_use(self, credentials: Credentials) -> None:
        """Addresses and keys, ready to be pasted."""
        front = self._plan.regions[0].public_url
        body = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "hello"}}], "max_tokens": 20}}'
        lines = (
            f"control plane  {self._plan.rest_url}",
            *(f"{region.name:14} {region.public_url}  (clients near {region.city})" for region in self._plan.regions),
            f"tenant key     {credentials.tenant_key}",
            "",
            f"curl {front}/v1/chat/completions -H 'Authorization: Bearer {credentials.tenant_key}' \\",
            f"  -H 'Content-Type: application/json' -d '{body}'",
            "",
            f"export HEADRACE_SERVER={self._plan.rest_url} HEADRACE_TOKEN={credentials.admin_token}",
        )
        for line in lines:
            self._console.print(line, highlight=False, soft_wrap=True, markup=False)

    async def _refresh(self) -> None:
        while True:
            if self._live is not None:
                self._live.update(self._picture(), refresh=True)
            await asyncio.sleep(_REFRESH_SECONDS)

    def _picture(self) -> Group:
        table = Table(title="headrace demo", title_justify="left")
        table.add_column("clients in")
        table.add_column("requests/s", justify="right")
        table.add_column("median s", justify="right")
        table.add_column("served by")
        table.add_column("failed", justify="right")
        recent = self._recent()
        for region in self._plan.regions:
            mine = [served for served in recent if served.city == region.city]
            times = sorted(served.ended - served.started for served in mine if served.outcome == "ok")
            where = Counter(served.region for served in mine if served.outcome == "ok")
            total = sum(where.values()) or 1
            table.add_row(
                region.city,
                f"{len(mine) / _WINDOW_SECONDS:.0f}",
                f"{times[len(times) // 2]:.3f}" if times else "-",
                _places({name: count / total for name, count in where.items()}),
                str(sum(served.outcome == "failed" for served in mine)),
            )
        return Group(table, Text(self._doing))

    def _recent(self) -> list[Served]:
        if self._traffic is None:
            return []
        since = asyncio.get_running_loop().time() - _WINDOW_SECONDS
        recent = []
        for served in reversed(self._traffic.done):
            if served.ended < since:
                break
            recent.append(served)
        return recent


def _places(shares: dict[str, float]) -> str:
    """Biggest first; what is under one per cent is left out."""
    ranked = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {share:.0%}" for name, share in ranked if share >= 0.01) or "nobody"
