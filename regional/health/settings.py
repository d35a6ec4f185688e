"""When silence, slowness and failure count, and for how long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """Durations in seconds, shares from 0 to 1."""

    probe_tries: int = 2
    probe_timeout_seconds: float = 0.15
    probe_interval_seconds: float = 0.5
    """Between direct probes of an endpoint whose agent is silent."""
    down_probe_interval_seconds: float = 0.05
    """Between direct probes of an endpoint that does not answer; slows down to ``dead_probe_interval_seconds``."""
    dead_probe_interval_seconds: float = 2.0
    quick_probes: int = 150
    """Unanswered probes before they get rarer."""
    quick_watches: int = 32
    """Endpoints that are asked at these intervals; with more, each is asked more rarely."""
    suspicion_seconds: float = 5.0
    """After a failed connection an endpoint comes after all others until it answers, but not for longer than this."""
    consecutive_failures: int = 5
    ejection_seconds: float = 2.0
    """First ejection; each further one is twice as long."""
    ejection_max_seconds: float = 60.0
    ejection_share: float = 0.34
    """Most of a pool that may be ejected for failing, but one of two or more always may."""
    half_open_requests: int = 1
    """Trial requests at once when an ejection ends."""
    half_open_successes: int = 2
    panic_share: float = 0.5
    """Below this share of endpoints in good health, unproven signs of bad health are ignored."""
    auth_failed_seconds: float = 30.0
    ban_seconds: float = 1.0
    """Pause after a refusal that names none."""
    ban_max_seconds: float = 60.0
    hang_after_seconds: float = 0.5
    """No progress for this long with work in flight, and longer than expected, asks for a probe."""
    hang_patience: float = 3.0
    """How many times its expected time an answer may take on top of that."""
    hang_sample_seconds: float = 3.0
    """Engine counters older than this prove nothing."""
    hang_eject_seconds: float = 5.0
    """No progress for this long although probes are answered ejects (case-E01)."""
    quiet_seconds: float = 1.0
    """An engine that made progress this lately is busy when it does not answer a probe; a refusal is one all the same."""
    hang_rounds: int = 2
    """Probes in a row, of ``probe_tries`` each, that a place whose agent is well leaves without an answer before it is given up."""
    crowd_patience_seconds: float = 10.0
    """So long a place whose agent is well may be silent while places of other nodes are, too: that is the network, or a machine
    short of CPU, rather than each of them. It gets no new work meanwhile where there is a choice."""
    crowd_seconds: float = 1.0
    """Silence of another node's places this lately is at the same time."""
    crowd_nodes: int = 3
    crowd_share: float = 0.67
    """Leases of this many nodes, and this share of all, that lapse together are given ``patience_max_seconds`` more."""
    late_grain_seconds: float = 0.025
    """Ticks of ours that come later than this count as late: half a tick."""
    late_half_life_seconds: float = 1.0
    strained_seconds: float = 0.25
    """A router this late finds no hangs, and its time-outs say nothing about places."""
    patience_max_seconds: float = 2.0
    """Most that leases and the hang window are widened by our own lateness."""
    probe_turns: float = 3.0
    """Turns of our loop in one try of a probe, each of which may be late: connect, send, read."""
    probe_patience_max_seconds: float = 1.0
