"""Waiting for what must come true, with a generous bound, instead of sleeping for a guess."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable


async def until(
    condition: Callable[[], object] | Callable[[], Awaitable[object]], seconds: float = 10.0, what: str = ""
) -> None:
    """Return as soon as ``condition()`` (plain or awaitable) is true. Raises TimeoutError that says what was waited for."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                result = condition()
                if inspect.isawaitable(result):
                    result = await result
                if result:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise TimeoutError(f"not within {seconds} s: {what or condition}") from None
