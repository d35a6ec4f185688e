"""One request as it comes in."""

from __future__ import annotations

from enum import Enum

from fleet.request import Task
from regional.gateway.auth import Principal
from regional.gateway.errors import Refusal
from regional.gateway.hop import HopClaims

_ONCE = frozenset({b"expect", b"transfer-encoding", b"x-headrace-hop"})


class Kind(Enum):
    """What a request is for, by its path."""

    INFERENCE = 1
    LIVE = 2
    READY = 3
    MODELS = 4
    PEER = 5


class ClientRequest:
    """Filled by the connection's parser; judged once its head is whole."""

    __slots__ = (
        "arrived",
        "attempts",
        "began",
        "body",
        "claims",
        "complete",
        "forward",
        "head_done",
        "held",
        "http10",
        "keep_alive",
        "kind",
        "known",
        "label",
        "method",
        "path",
        "principal",
        "refusal",
        "repeated",
        "size",
        "target",
        "task",
        "uid",
    )

    def __init__(self, began: float) -> None:
        self.began = began
        self.arrived = began
        self.attempts = 0
        """Made so far, over all tiers."""
        self.target = b""
        self.method = b""
        self.path = b""
        self.known: dict[bytes, bytes] = {}
        """Headers for the gateway; those sent more than once are joined by commas and listed in ``repeated``."""
        self.repeated: set[bytes] = set()
        self.forward: list[bytes] = []
        """Header lines for the engine, names in lower case, each with its line end."""
        self.body: list[bytes] = []
        self.size = 0
        self.held = 0
        """Bytes of it that the gateway's count of held bodies includes."""
        self.head_done = False
        self.complete = False
        self.http10 = False
        self.keep_alive = True
        self.kind = Kind.INFERENCE
        self.task = Task.CHAT
        self.uid = ""
        self.label = ""
        self.principal: Principal | None = None
        self.claims: HopClaims | None = None
        self.refusal: Refusal | None = None

    def again(self, began: float, arrived: float) -> ClientRequest:
        """A new request whose head is equal to this one's."""
        new = ClientRequest(began)
        new.arrived = arrived
        new.method, new.path, new.task, new.label = self.method, self.path, self.task, self.label
        new.known, new.repeated, new.forward = self.known, self.repeated, self.forward
        new.head_done = new.complete = True
        return new

    @property
    def repeatable(self) -> bool:
        """True when an equal head may be taken for this one: nothing in it is meant for one message only."""
        return (
            self.refusal is None
            and self.kind is Kind.INFERENCE
            and self.keep_alive
            and not self.http10
            and self.claims is None
            and self.known.keys().isdisjoint(_ONCE)
            and self.known.get(b"connection", b"keep-alive").lower() == b"keep-alive"
        )

    @property
    def declared_length(self) -> int | None:
        """Of the body; None when it comes in chunks."""
        if b"transfer-encoding" in self.known:
            return None
        return int(self.known.get(b"content-length", b"0"))

    @property
    def expects_continue(self) -> bool:
        return self.known.get(b"expect", b"").lower() == b"100-continue"

    @property
    def shown_id(self) -> str:
        """What the client is told as ``x-request-id``: its own label, or our id."""
        return self.label or self.uid


def connection_line(request: ClientRequest, *, keep: bool) -> bytes:
    """The Connection header an answer needs; none when the protocol's default says it."""
    if not keep:
        return b"connection: close\r\n"
    return b"connection: keep-alive\r\n" if request.http10 else b""
