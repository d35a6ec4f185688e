"""Where an engine is in its life, and which devices it uses. Pure decisions over what the shells have seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet.accelerator import AcceleratorState, DeviceHealth
from fleet.endpoint import EndpointPhase, EngineLoad, ServedModel


@dataclass(frozen=True, slots=True)
class Limits:
    """How long is too long."""

    silent_after_seconds: float = 5.0
    """Without any answer for this long an engine is unreachable; a refused connection says so at once."""
    stalled_after_seconds: float = 60.0
    """Work in flight and not one token for this long: the engine hangs although it answers (case-E01)."""
    scrape_valid_intervals: float = 3.0
    """A scrape older than this many intervals is no data."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the watcher has seen of one engine. Times are monotonic seconds; None has not happened."""

    last_answer_at: float | None = None
    refused: bool = False
    """The newest attempt was refused: nothing listens there."""
    failure: str = ""
    """What the newest attempt came to, if not to an answer; for people."""
    unhealthy: str = ""
    """Why its own health check fails; empty when it passes or there is none."""
    loading: bool = False
    """It says itself that it is still loading its model."""
    was_ready: bool = False
    """It has been ready since its process started."""
    auth_failed: bool = False
    asleep: bool = False
    warm: bool = True
    listed: tuple[str, ...] | None = None
    """Names of the models it lists; None is not known."""
    running: int | None = None
    progress_at: float | None = None
    """When its token counters last moved, or work last began; None when they say nothing."""


def engine_phase(facts: EngineFacts, now: float, limits: Limits) -> tuple[EndpointPhase, str]:
    """The phase, and in words why it is not READY."""
    if facts.last_answer_at is None:
        return EndpointPhase.STARTING, facts.failure or "has not answered yet"
    if facts.refused:
        return EndpointPhase.UNREACHABLE, facts.failure
    silent = now - facts.last_answer_at
    if silent > limits.silent_after_seconds:
        return EndpointPhase.UNREACHABLE, f"no answer for {silent:.0f} s: {facts.failure or 'silent'}"
    if facts.auth_failed:
        return EndpointPhase.UNREACHABLE, "the engine refuses our api_key"
    if facts.loading:
        return EndpointPhase.STARTING, facts.unhealthy or "loading its model"
    if facts.unhealthy:
        phase = EndpointPhase.UNREACHABLE if facts.was_ready else EndpointPhase.STARTING
        return phase, facts.unhealthy
    if facts.asleep:
        return EndpointPhase.STOPPED, "the engine is asleep"
    if facts.listed is not None and not facts.listed:
        return EndpointPhase.STARTING, "lists no model yet"
    stalled = _stalled_seconds(facts, now)
    if stalled is not None and stalled > limits.stalled_after_seconds:
        return EndpointPhase.UNREACHABLE, f"{facts.running} requests running and no token for {stalled:.0f} s"
    if not facts.warm:
        return EndpointPhase.WARMING, "warming up"
    return EndpointPhase.READY, ""


def _stalled_seconds(facts: EngineFacts, now: float) -> float | None:
    if not facts.running or facts.progress_at is None:
        return None
    return now - facts.progress_at


def served_models(
    wanted: Sequence[ServedModel], listed: Sequence[str] | None, *, strict: bool
) -> tuple[tuple[ServedModel, ...], str]:
    """The models an endpoint offers, and what is wrong if it offers none.

    ``wanted`` is what the operator wrote (empty: all that the engine lists, under its own names). An engine that is strict about
    names offers of these only what it lists.
    """
    if not wanted:
        if listed is None:
            return (), "its models are not known: name them in the engine's models"
        return tuple(ServedModel(name, name) for name in listed), ""
    if listed is None or not strict:
        return tuple(wanted), ""
    offered = tuple(m for m in wanted if m.served_as in listed)
    if offered:
        return offered, ""
    return (), f"serves {', '.join(listed[:4]) or 'nothing'}, not {', '.join(m.served_as for m in wanted[:4])}"


def load_as_of(load: EngineLoad, taken_at: float | None, now: float, valid_seconds: float) -> tuple[EngineLoad, bool]:
    """The load to report and whether it is fresh. What is too old is no data; its age still tells how long (trap i)."""
    if taken_at is None:
        return EngineLoad(), False
    age = max(0.0, now - taken_at)
    if age > valid_seconds:
        return EngineLoad(sample_age_seconds=age), False
    return (
        EngineLoad(
            load.running,
            load.waiting,
            load.kv_usage,
            load.prompt_tokens_total,
            load.cached_tokens_total,
            load.generated_tokens_total,
            load.preemptions_total,
            age,
        ),
        True,
    )


def restarted(before: EngineLoad, after: EngineLoad) -> bool:
    """True when a counter went back: the engine's process is a new one (case-M05)."""
    pairs = (
        (before.prompt_tokens_total, after.prompt_tokens_total),
        (before.cached_tokens_total, after.cached_tokens_total),
        (before.generated_tokens_total, after.generated_tokens_total),
        (before.preemptions_total, after.preemptions_total),
    )
    return any(b is not None and a is not None and a < b for b, a in pairs)


def counter_rate(before: float | None, after: float | None, seconds: float) -> float | None:
    """Per second between two readings of a counter; None when one is missing or the counter was reset. Never negative."""
    if before is None or after is None or seconds <= 0 or after < before:
        return None
    return (after - before) / seconds


def progress(load: EngineLoad) -> float | None:
    """A number that rises whenever the engine does something; None when its counters do not say."""
    parts = [p for p in (load.prompt_tokens_total, load.generated_tokens_total) if p is not None]
    return sum(parts) if parts else None


def idle(load: EngineLoad, fresh: bool) -> bool | None:
    """True when a fresh scrape shows nothing running or waiting; None when nothing can be said."""
    if not fresh or load.running is None:
        return None
    return load.running == 0 and not load.waiting


@dataclass(frozen=True, slots=True)
class GpuBinding:
    """The devices an engine uses. With ``known`` False the tuple is empty and means unknown, not none."""

    uuids: tuple[str, ...] = ()
    known: bool = False
    reason: str = ""


def bind_gpus(
    wanted: Sequence[str],
    devices: Sequence[AcceleratorState],
    pinned: Mapping[str, str],
    from_processes: Sequence[str],
) -> tuple[GpuBinding, dict[str, str]]:
    """What an engine runs on, and which index means which UUID from now on.

    Order of evidence: what the operator wrote (UUIDs as they are; an index is looked up once and then pinned to its UUID, so
    that links survive when the driver counts differently, case-G07); else what the driver's process list shows; else unknown.
    """
    if not wanted:
        if from_processes:
            return GpuBinding(tuple(from_processes), True), {}
        return GpuBinding(reason="no gpus configured and the driver lists no process of this engine"), {}
    by_index = {str(d.index): d.uuid for d in devices if d.index is not None and not d.parent_uuid}
    pins: dict[str, str] = {}
    uuids: list[str] = []
    for item in wanted:
        if not item.isdigit():
            uuids.append(item)
            continue
        uuid = pinned.get(item) or by_index.get(item)
        if uuid is None:
            return GpuBinding(reason=f"there is no GPU with index {item}"), dict(pinned)
        pins[item] = uuid
        uuids.append(uuid)
    return GpuBinding(tuple(dict.fromkeys(uuids)), True), pins


def device_fault(binding: GpuBinding, devices: Sequence[AcceleratorState], *, readable: bool) -> str:
    """Why an endpoint must not be used because of its devices; empty when nothing is known against them.

    A device that cannot be read proves nothing: its engine is judged by its own health (case-G05).
    """
    if not binding.known:
        return ""
    by_uuid = {d.uuid: d for d in devices}
    for uuid in binding.uuids:
        device = by_uuid.get(uuid)
        if device is None:
            if readable:
                return f"{uuid} is not on this node"
        elif not device.health.usable:
            return f"{uuid} {device.health.value}: {device.health_reason}"
    return ""


def readable(devices: Iterable[AcceleratorState]) -> bool:
    """True when the driver answers for at least one device."""
    return any(d.health is not DeviceHealth.UNKNOWN for d in devices)


def process_gpus(
    listener_pids: Iterable[int], parents: Mapping[int, int], processes: Mapping[str, Iterable[int]]
) -> tuple[str, ...]:
    """Devices on which the process that listens on an engine's port, or a descendant of it, computes.

    ``parents`` maps pid to parent pid; ``processes`` device UUID to the pids that the driver lists for it.
    """
    roots = set(listener_pids)

    def descends(pid: int) -> bool:
        seen: set[int] = set()
        while pid > 1 and pid not in seen:
            if pid in roots:
                return True
            seen.add(pid)
            pid = parents.get(pid, 0)
        return False

    return tuple(uuid for uuid, pids in processes.items() if any(descends(p) for p in pids))
