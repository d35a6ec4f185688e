"""The outbox: together, in order, after the turn; and answers of our own never overtake it."""

from __future__ import annotations

import asyncio
from typing import cast

from regional.gateway.outbox import Outbox


class _Wire:
    """As much of a transport as an outbox uses."""

    def __init__(self, log: list[tuple[str, bytes]], name: str) -> None:
        self._log = log
        self._name = name
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self._log.append((self._name, data))


def _wire(log: list[tuple[str, bytes]], name: str) -> asyncio.Transport:
    return cast(asyncio.Transport, _Wire(log, name))


async def test_messages_of_a_turn_go_out_together_and_in_order() -> None:
    log: list[tuple[str, bytes]] = []
    box = Outbox()
    a, b = _wire(log, "a"), _wire(log, "b")
    for transport, data in ((a, b"1"), (b, b"2"), (a, b"3")):
        box.add(transport, data)
    assert log == []
    await asyncio.sleep(0)
    assert log == [("a", b"1"), ("b", b"2"), ("a", b"3")]
    box.add(b, b"4")
    await asyncio.sleep(0)
    assert log[-1] == ("b", b"4")


async def test_flush_sends_at_once_and_only_once() -> None:
    log: list[tuple[str, bytes]] = []
    box = Outbox()
    box.add(_wire(log, "a"), b"1")
    box.flush()
    assert log == [("a", b"1")]
    await asyncio.sleep(0)
    assert len(log) == 1


async def test_a_closed_transport_loses_only_its_own() -> None:
    log: list[tuple[str, bytes]] = []
    box = Outbox()
    gone, there = _wire(log, "gone"), _wire(log, "there")
    box.add(gone, b"1")
    box.add(there, b"2")
    cast(_Wire, gone).closing = True
    await asyncio.sleep(0)
    assert log == [("there", b"2")]
