"""``headrace demo``: brings the stage up, sends traffic, climbs the ladder, tells, and takes everything down."""

from __future__ import annotations

import asyncio
import itertools
import json as jsonlib
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console

from headrace.demo.engines import check_llamacpp
from headrace.demo.ladder import Ladder, RungResult
from headrace.demo.layout import Layout, layout, ports_needed
from headrace.demo.ports import check_free, free_block
from headrace.demo.show import Show
from headrace.demo.stage import Stage
from headrace.demo.traffic import Traffic

_LADDER_RATE = {"simulated": 140.0, "llamacpp": 60.0}
_QUIET_RATE = 15.0
_MAX_TOKENS = {"simulated": 16, "llamacpp": 4}
_NO_LADDER_SECONDS = 5.0
_WIDTH = 120
"""Of output that goes to no terminal."""
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Options:
    once: bool
    json: bool
    ladder: bool
    engine: str


def run(
    *, once: bool, json: bool, no_ladder: bool, engine: str, regions: int, port_base: int | None, keep: Path | None
) -> int:
    """The whole command; its exit status. Raises HeadraceError with a line for the user when it cannot be brought up."""
    if engine == "llamacpp":
        check_llamacpp()
    count = ports_needed(regions)
    first = port_base if port_base is not None else free_block(count)
    plan = layout(regions, itertools.count(first))
    check_free(plan.ports)
    options = Options(once, json, not no_ladder, engine)
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as temporary:
        directory = keep if keep is not None else Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(_until_told(_demo(plan, directory.absolute(), options), once))
        finally:
            # All is down. What is left is to go, with the status that is due, whoever presses Ctrl-C again.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)


async def _until_told(demo: Coroutine[Any, Any, int], once: bool) -> int:
    """Run the demo; the first SIGINT or SIGTERM ends it in good order, and being told again changes nothing."""
    task = asyncio.ensure_future(demo)
    told = False

    def tell() -> None:
        nonlocal told
        if not told:
            told = True
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, tell)
    try:
        return await task
    except asyncio.CancelledError:
        return INTERRUPTED if once else 0


async def _demo(plan: Layout, directory: Path, options: Options) -> int:
    began = time.monotonic()
    # With --json, standard output has exactly one object, and people read standard error.
    out = sys.stderr if options.json else sys.stdout
    show = Show(plan, Console(file=out, width=None if out.isatty() else _WIDTH))
    async with AsyncExitStack() as stack:
        model_file = ""
        if options.engine == "llamacpp":
            from headrace.demo.gguf_model import write_model

            model_file = str(directory / "tiny.gguf")
            await asyncio.to_thread(write_model, Path(model_file))
        stage = await stack.enter_async_context(
            Stage(plan, directory, engine=options.engine, model_file=model_file, say=show.say)
        )
        await stack.enter_async_context(show)
        await stage.start()
        show.say(f"up after {time.monotonic() - began:.1f} s")
        traffic = Traffic(
            plan,
            stage.credentials.tenant_key,
            rate=_LADDER_RATE[options.engine] if options.ladder else _QUIET_RATE,
            max_tokens=_MAX_TOKENS[options.engine],
        )
        show.follow(traffic)
        stop = asyncio.Event()
        sending = asyncio.get_running_loop().create_task(traffic.run(stop))
        stack.push_async_callback(_cancelled, sending)
        results: list[RungResult] = []
        if options.ladder:
            results = await Ladder(stage, traffic, show.say).climb(show.result)
            ok = all(result.ok for result in results)
        else:
            await asyncio.sleep(_NO_LADDER_SECONDS)
            ok = bool(traffic.done) and all(served.outcome == "ok" for served in traffic.done)
        seconds = time.monotonic() - began
        if options.ladder:
            show.summary(results, seconds)
        if options.json:
            verdict = {"rungs": [result.as_json() for result in results], "ok": ok, "seconds": round(seconds, 1)}
            print(jsonlib.dumps(verdict), flush=True)  # noqa: T201  what was asked for
        if not options.once:
            traffic.set_rate(_QUIET_RATE)
            show.how_to_use(stage.credentials)
            show.say("stays up until Ctrl-C")
            await asyncio.Event().wait()
        stop.set()
        await sending
    return 0 if ok else 1


async def _cancelled(task: asyncio.Task[None]) -> None:
    """End a task that may have ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
