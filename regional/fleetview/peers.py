"""Other regions: what their routers answer when probed, and what the centre last said of them."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.capacity import CapacityRow


@dataclass(frozen=True, slots=True)
class PeerProbe:
    """What came of probing one router of a peer region once."""

    address: str
    """Base URL of the router probed."""
    ok: bool
    """It answered, with a signature of our deployment, as a router of that region."""
    ready: bool = True
    """It takes requests (not draining)."""
    rtt_seconds: float | None = None
    rows: tuple[CapacityRow, ...] | None = None
    """Its capacity rows (``FleetView.capacity_rows`` there); None when the answer held none. They make regions fail over
    with no control plane up."""
