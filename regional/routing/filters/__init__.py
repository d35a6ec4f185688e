"""What may not be chosen, or only after others. One small file each, of two shapes (``routing/interfaces.py``).

A *standing* filter judges an endpoint by itself whenever something about it changes; its answer is a tier that is added to the
endpoint's cost. A *request* filter says for one request which positions of a pool it takes out.
"""

from __future__ import annotations

from regional.routing.filters import (
    breaker,
    credentials,
    device,
    hold,
    life,
    pause,
    phase,
)
from regional.routing.interfaces import StandingFilter

STANDING: tuple[StandingFilter, ...] = (
    phase.Phase(),
    device.Device(),
    hold.Held(),
    pause.Paused(),
    credentials.Credentials(),
    breaker.Ejected(),
    life.Life(),
)
"""Hardest first; the first that says OUT is the reason told."""
