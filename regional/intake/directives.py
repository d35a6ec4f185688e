"""What each node is told: wanted state, stamped with the intent it comes from, and the routers of its region."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from fleet.report import NodeDirective
from fleet.snapshot import IntentVersion


class Directives:
    """The present directive of any node, and a signal when any may have changed."""

    def __init__(
        self,
        at: Callable[[], IntentVersion],
        wanted: Callable[[str], tuple[bool, bool]],
        routers: Callable[[], Sequence[str]],
        interval_seconds: float,
    ) -> None:
        """``wanted(node_uid)`` is (cordoned, draining); ``routers()`` the region's gRPC addresses, this router's first."""
        self._at = at
        self._wanted = wanted
        self._routers = routers
        self._interval = interval_seconds
        self._changed = asyncio.Event()

    def of(self, node_uid: str) -> NodeDirective:
        at = self._at()
        cordoned, draining = self._wanted(node_uid)
        return NodeDirective(at.epoch, at.version, tuple(self._routers()), cordoned, draining, self._interval)

    def changed(self) -> None:
        """Wake everybody who waits in :meth:`wait`."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self) -> None:
        """Until the next change."""
        await self._changed.wait()
