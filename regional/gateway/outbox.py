"""Small whole messages that go out together, after all that one turn of the event loop has read.

Under load a turn reads from many connections. Written one by one between decisions, each message finds its receiver asleep again
and pays for waking it; written back to back, most find it awake. A turn that read only one pays nothing.
"""

from __future__ import annotations

import asyncio


class Outbox:
    """Messages of the present turn. A transport that closes before the turn is over loses its message with it."""

    __slots__ = ("_messages",)

    def __init__(self) -> None:
        self._messages: list[tuple[asyncio.Transport, bytes]] = []

    def add(self, transport: asyncio.Transport, message: bytes) -> None:
        """Send ``message`` when this turn's reading is done. Whoever writes to the same transport before must ``flush`` first."""
        if not self._messages:
            asyncio.get_running_loop().call_soon(self.flush)
        self._messages.append((transport, message))

    def flush(self) -> None:
        """Write everything now, in order."""
        messages, self._messages = self._messages, []
        for transport, message in messages:
            if not transport.is_closing():
                transport.write(message)
