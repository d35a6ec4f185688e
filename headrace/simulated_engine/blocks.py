"""KV-cache blocks of one engine, with a prefix cache by block hash. Pure bookkeeping: blocks are counted, not stored.

A block is in exactly one state: never used, private to a sequence, shared under its hash by one or more sequences, or
cached (its hash is kept, nobody uses it, and it may be evicted, least recently used first).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

BLOCK_TOKENS = 16


@dataclass(slots=True)
class Holding:
    """What one sequence holds. Changed only by :class:`BlockPool`."""

    shared: list[int] = field(default_factory=list)
    """Hashes of its leading full prompt blocks, in order."""
    private: int = 0

    @property
    def blocks(self) -> int:
        return len(self.shared) + self.private


class BlockPool:
    """A fixed number of blocks. Not thread-safe; one owner."""

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError("a KV cache wants at least one block")
        self.total = total
        self._users: dict[int, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._private = 0

    @property
    def used(self) -> int:
        """Blocks that some sequence needs now."""
        return len(self._users) + self._private

    @property
    def free(self) -> int:
        """Blocks that can be handed out now, by evicting cached ones if need be."""
        return self.total - self.used

    @property
    def cached(self) -> int:
        return len(self._cached)

    def known_prefix(self, hashes: SequenceOf[int], limit: int) -> int:
        """How many leading blocks, at most ``limit``, are in the cache or in use under their hash."""
        count = 0
        for value in hashes[:limit]:
            if value not in self._users and value not in self._cached:
                break
            count += 1
        return count

    def idle_among(self, hashes: SequenceOf[int]) -> int:
        """How many of these known blocks nobody uses now, so that taking them lowers ``free``."""
        return sum(1 for value in hashes if value not in self._users)

    def take_prefix(self, holding: Holding, hashes: SequenceOf[int]) -> None:
        """Give a sequence that holds nothing the known blocks of its prefix."""
        for value in hashes:
            if value in self._users:
                self._users[value] += 1
            else:
                del self._cached[value]
                self._users[value] = 1
        holding.shared.extend(hashes)

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Let the sequence hold ``tokens`` tokens; False, and nothing changed, when memory does not suffice."""
        wanted = -(-tokens // BLOCK_TOKENS) - holding.blocks
        if wanted <= 0:
            return True
        if wanted > self.free:
            return False
        holding.private += wanted
        self._private += wanted
        while self.used + len(self._cached) > self.total:
            self._cached.popitem(last=False)
        return True

    def register(self, holding: Holding, value: int) -> None:
        """The next full prompt block of this sequence was computed: make it findable under its hash.

        A block that another sequence computed meanwhile is kept once; the duplicate goes back.
        """
        holding.private -= 1
        self._private -= 1
        holding.shared.append(value)
        if value in self._users:
            self._users[value] += 1
            return
        self._cached.pop(value, None)
        self._users[value] = 1

    def release(self, holding: Holding) -> None:
        """Take everything back; full prompt blocks stay cached, the deepest to be evicted first."""
        for value in reversed(holding.shared):
            left = self._users[value] - 1
            if left:
                self._users[value] = left
            else:
                del self._users[value]
                self._cached[value] = None
        holding.shared.clear()
        self._private -= holding.private
        holding.private = 0

    def forget(self) -> None:
        """Drop all cached blocks (``/reset_prefix_cache``)."""
        self._cached.clear()
