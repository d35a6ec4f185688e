"""What is known of an engine, what one scrape of it gives, and the interface of a kind of engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agents.engines.exposition import Page, Scanner
from fleet.endpoint import EngineKind, EngineLoad, ServedModel


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """One engine to watch. ``uid`` is its identity; the rest may change under it."""

    uid: str
    name: str
    kind: EngineKind
    url: str
    """Where the watcher reaches it: scheme, host and port."""
    advertise: str = ""
    """Where routers reach it; empty means ``url``."""
    models: tuple[ServedModel, ...] = ()
    """Empty: all that it serves, under its own names."""
    api_key: str = field(default="", repr=False)
    ranges: tuple[str, ...] = ()
    """Networks in which its address must lie; empty means anywhere."""
    tensor_parallel: int = 1
    max_inflight: int | None = None
    """These three, where given, beat what the engine says of itself."""
    kv_tokens: int | None = None
    context_tokens: int | None = None
    warmup_requests: int = 0


@dataclass(frozen=True, slots=True)
class EngineShape:
    """How large an engine is, where it says so; None is unknown."""

    max_inflight: int | None = None
    kv_tokens: int | None = None
    context_tokens: int | None = None

    def over(self, other: EngineShape) -> EngineShape:
        """This shape, with what it does not know taken from ``other``."""
        return EngineShape(
            self.max_inflight if self.max_inflight is not None else other.max_inflight,
            self.kv_tokens if self.kv_tokens is not None else other.kv_tokens,
            self.context_tokens if self.context_tokens is not None else other.context_tokens,
        )


@dataclass(frozen=True, slots=True)
class EngineScrape:
    """What one page of metrics said. A family that is there under no known name is None: unknown, never zero (case-M01)."""

    load: EngineLoad = EngineLoad()
    shape: EngineShape = EngineShape()
    process_start: float | None = None
    """Unix seconds at which the engine's process started, by its own clock: compared for equality only."""
    asleep: bool = False
    skipped: int = 0
    """Samples that were no finite number, and lines that were no sample (case-M03)."""


@dataclass(frozen=True, slots=True)
class ServedName:
    """A model as the engine lists it."""

    served_as: str
    context_tokens: int | None = None
    parent: str = ""
    """Base model of an adapter."""


@dataclass(frozen=True, slots=True)
class Request:
    """A metadata request a kind wants made now and then. ``path`` starts with a slash."""

    path: str
    every_seconds: float = 10.0


class Engine(Protocol):
    """A kind of engine: where it is read and what its names mean. Stateless; the watcher does the I/O."""

    metrics_path: str
    """Empty: it has no metrics."""
    health_path: str
    """Empty: the model list serves as the probe."""
    lists_models: bool
    """It answers ``/v1/models`` in OpenAI's form."""
    strict_names: bool
    """It refuses a model name that it does not list."""
    metadata: tuple[Request, ...]
    scanner: Scanner
    """Of all families that ``read`` looks at."""

    def read(self, page: Page) -> EngineScrape:
        """The load in a page of metrics."""
        ...

    def shape(self, documents: Mapping[str, Any]) -> EngineScrape:
        """Shape and state from the JSON documents of ``metadata``, by path; those that could not be had are absent."""
        ...
