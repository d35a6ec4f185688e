"""Parts that fail: told, started again, and not taking the others along."""

from __future__ import annotations

import asyncio

import pytest

from fleet.process.supervisor import Supervisor
from tests.router.waiting import until


class Faults:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def __call__(self, name: str, error: BaseException | None) -> None:
        self.told.append((name, repr(error)))


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_part_that_fails_or_ends_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.process.supervisor.RESTART_SECONDS", 0.01)
    faults, runs = Faults(), []

    async def flaky() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise KeyError("once")
        if len(runs) > 2:
            await forever()

    supervisor = Supervisor(faults)
    supervisor.start("flaky", flaky)
    supervisor.start("steady", forever)
    await until(lambda: len(runs) == 3)
    assert faults.told == [("flaky", "KeyError('once')"), ("flaky", "None")]
    stop = asyncio.Event()
    stop.set()
    await supervisor.wait(stop)
    await supervisor.close()


async def test_a_vital_part_takes_the_process_with_it() -> None:
    async def broken() -> None:
        raise OSError("no socket")

    async def short() -> None:
        return None

    for work, error in ((broken, OSError), (short, RuntimeError)):
        supervisor = Supervisor(Faults())
        supervisor.start("steady", forever)
        supervisor.start_vital("vital", work)
        with pytest.raises(error):
            await supervisor.wait(asyncio.Event())
        await supervisor.close()


async def test_closing_ends_the_newest_first() -> None:
    ended: list[str] = []

    def work(name: str) -> object:
        async def run() -> None:
            try:
                await forever()
            finally:
                ended.append(name)

        return run

    supervisor = Supervisor(Faults())
    for name in ("a", "b", "c"):
        supervisor.start(name, work(name))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await supervisor.close()
    assert ended == ["c", "b", "a"]
