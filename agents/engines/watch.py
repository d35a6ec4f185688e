"""The watch over one engine: what is asked of it when, and what has been learned."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from agents.engines.base import EngineScrape, EngineShape, EngineTarget, ServedName
from agents.engines.kinds import ENGINES
from agents.lifecycle import (
    EngineFacts,
    Limits,
    counter_rate,
    engine_phase,
    load_as_of,
    progress,
    restarted,
    served_models,
)
from agents.probes import Answer, EngineHttp, ProbeError, ProbeFailure, settle
from agents.warmup import warm_up
from fleet.clock import Clock
from fleet.endpoint import EndpointPhase, EndpointReport, EngineLoad, ServedModel
from fleet.process.logs import get_logger

MODELS_PATH = "/v1/models"
MODELS_EVERY_SECONDS = 5.0
ABSENT_EVERY_SECONDS = 30.0
"""How often a page that the engine does not have (404) is asked for again."""
WARMUP_RETRY_SECONDS = 5.0
_TROUBLE = (EndpointPhase.UNREACHABLE, EndpointPhase.STOPPED)

log = get_logger("agents.engines")


class Watch:
    """State is changed by :meth:`run` only; :meth:`report` reads it."""

    def __init__(
        self,
        target: EngineTarget,
        http: EngineHttp,
        clock: Clock,
        interval_seconds: float,
        limits: Limits,
        on_change: Callable[[], None],
    ) -> None:
        self.target = target
        self._engine = ENGINES[target.kind]
        self._http = http
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._limits = limits
        self._on_change = on_change
        self.skipped_samples = 0
        """Samples of this engine that were no finite number, since the start."""
        self.failed_scrapes = 0
        self.generated_per_second: float | None = None
        self._due: dict[str, float] = {}
        self._warm_task: asyncio.Task[bool] | None = None
        self._forget()

    def _forget(self) -> None:
        """Start from nothing known, as at another address."""
        self._facts = EngineFacts()
        self._load = EngineLoad()
        self._load_at: float | None = None
        self._shape = EngineShape()
        self._metadata_shape = EngineShape()
        self._documents: dict[str, Any] = {}
        self._process_start: float | None = None
        self._was_refused = False
        self._incarnation = 0
        self._served: tuple[ServedName, ...] | None = None
        self._due.clear()
        self._told: tuple[object, ...] = ()

    def retarget(self, target: EngineTarget) -> None:
        """Take on a changed description of the same engine."""
        if target == self.target:
            return
        moved = target.url != self.target.url or target.kind is not self.target.kind
        self.target = target
        self._engine = ENGINES[target.kind]
        if moved:
            incarnation = self._incarnation
            self._cancel_warm_up()
            self._forget()
            self._incarnation = incarnation + 1

    async def run(self) -> None:
        """Look, again and again, until cancelled."""
        # Engines of one node are not all asked in the same instant.
        await asyncio.sleep(random.random() * min(self._interval_seconds, 0.1))  # noqa: S311
        try:
            while True:
                started = self._clock.monotonic()
                await self.look()
                spent = self._clock.monotonic() - started
                await asyncio.sleep(max(self._interval_seconds - spent, self._interval_seconds / 4))
        finally:
            self._cancel_warm_up()

    async def look(self) -> None:
        """One round: health, metrics, and what else is due, asked at the same time."""
        target, engine = self.target, self._engine
        now = self._clock.monotonic()
        paths: list[str] = []
        if engine.health_path:
            paths.append(engine.health_path)
        if engine.metrics_path and self._is_due(engine.metrics_path, now):
            paths.append(engine.metrics_path)
        if engine.lists_models and (not engine.health_path or self._is_due(MODELS_PATH, now)):
            paths.append(MODELS_PATH)  # without a health check it is the sign of life
        paths += [r.path for r in engine.metadata if self._is_due(r.path, now)]
        answers = await settle(*(self._http.get(target.url, p, target.api_key) for p in paths))
        if target is not self.target:
            return  # it was moved meanwhile; what came back is about something else
        self._take(dict(zip(paths, answers, strict=True)))
        self._warm_up_if_needed()
        self._tell()

    def _is_due(self, path: str, now: float) -> bool:
        return now >= self._due.get(path, 0.0)

    def _take(self, answers: dict[str, Answer | ProbeError]) -> None:
        now = self._clock.monotonic()
        got = {path: a for path, a in answers.items() if isinstance(a, Answer)}
        errors = [a for a in answers.values() if isinstance(a, ProbeError)]
        if not got:
            if not errors:
                return
            refused = any(e.failure is ProbeFailure.REFUSED for e in errors)
            self._was_refused = self._was_refused or (refused and self._facts.last_answer_at is not None)
            self._facts = replace(self._facts, refused=refused, failure=str(errors[0]))
            if refused:
                self._due.clear()  # when it comes back everything is asked anew
            return
        came_back = self._was_refused
        self._was_refused = False
        metadata = {r.path for r in self._engine.metadata}
        self._facts = replace(
            self._facts,
            last_answer_at=now,
            refused=False,
            failure=str(errors[0]) if errors else "",
            auth_failed=any(a.refuses_us for path, a in got.items() if path not in metadata),
        )
        self._take_health(got)
        self._take_metrics(got, now, came_back)
        self._incarnation = max(self._incarnation, 1)  # 0 is: never seen
        self._take_models(got, now)
        self._take_metadata(got, now)

    def _take_health(self, got: dict[str, Answer]) -> None:
        answer = got.get(self._engine.health_path or MODELS_PATH)
        if answer is None:
            return
        absent = answer.status == 404
        unhealthy = "" if answer.ok or absent or answer.refuses_us else f"health check: HTTP {answer.status}"
        loading = answer.status == 503 and "loading" in answer.body.lower()
        self._facts = replace(self._facts, unhealthy=unhealthy, loading=loading)

    def _take_metrics(self, got: dict[str, Answer], now: float, came_back: bool) -> None:
        answer = got.get(self._engine.metrics_path)
        if answer is None or not answer.ok:
            if answer is not None:
                self.failed_scrapes += 1
                if answer.status in (404, 501):
                    self._due[self._engine.metrics_path] = now + ABSENT_EVERY_SECONDS
            if came_back:
                self._restarted(None)
            return
        scrape = self._engine.read(self._engine.scanner.scan(answer.body))
        self.skipped_samples += scrape.skipped
        if self._process_start is not None and scrape.process_start is not None:
            new_process = abs(scrape.process_start - self._process_start) > 1.0
        else:
            new_process = came_back
        if new_process or restarted(self._load, scrape.load):
            self._restarted(scrape.process_start)
        elif self._load_at is None and scrape.process_start is not None:
            self._incarnation = max(self._incarnation, round(scrape.process_start * 1000))
        self._process_start = scrape.process_start
        self.generated_per_second = counter_rate(
            self._load.generated_tokens_total,
            scrape.load.generated_tokens_total,
            now - self._load_at if self._load_at is not None else 0.0,
        )
        self._note_progress(scrape, now)
        self._load, self._load_at, self._shape = scrape.load, now, scrape.shape
        if not self._engine.metadata:
            self._facts = replace(self._facts, asleep=scrape.asleep)

    def _note_progress(self, scrape: EngineScrape, now: float) -> None:
        after = progress(scrape.load)
        moved = after is not None and after != progress(self._load)
        begun = bool(scrape.load.running) and not self._load.running
        at = self._facts.progress_at
        if after is None:
            at = None
        elif moved or begun or at is None:
            at = now
        self._facts = replace(self._facts, running=scrape.load.running, progress_at=at)

    def _restarted(self, process_start: float | None) -> None:
        """A new process: its caches are empty and it has to show again that it is ready."""
        start = round(process_start * 1000) if process_start is not None else 0
        self._incarnation = max(self._incarnation + 1, start)
        self._load, self._load_at = EngineLoad(), None
        self._cancel_warm_up()
        self._facts = replace(self._facts, was_ready=False, progress_at=None, warm=self.target.warmup_requests == 0)
        self._due.clear()

    def _take_models(self, got: dict[str, Answer], now: float) -> None:
        answer = got.get(MODELS_PATH)
        if answer is None:
            return
        if answer.status == 404:
            self._due[MODELS_PATH] = now + ABSENT_EVERY_SECONDS
            return
        names = _names(answer.json()) if answer.ok else None
        if names is None:
            return
        self._served = names
        self._due[MODELS_PATH] = now + (MODELS_EVERY_SECONDS if names else 0.0)
        self._facts = replace(self._facts, listed=tuple(n.served_as for n in names))

    def _take_metadata(self, got: dict[str, Answer], now: float) -> None:
        asked = False
        for request in self._engine.metadata:
            answer = got.get(request.path)
            if answer is None:
                continue
            asked = True
            self._due[request.path] = now + request.every_seconds
            document = answer.json() if answer.ok else None
            if document is None:
                self._documents.pop(request.path, None)
            else:
                self._documents[request.path] = document
        if asked:
            seen = self._engine.shape(self._documents)
            self._metadata_shape = seen.shape
            self._facts = replace(self._facts, asleep=seen.asleep)

    def _warm_up_if_needed(self) -> None:
        if self.target.warmup_requests == 0:
            self._facts = replace(self._facts, warm=True)
            return
        task = self._warm_task
        if task is not None:
            if task.done():
                self._warm_task = None
                if not task.cancelled() and task.result():
                    self._facts = replace(self._facts, warm=True)
                else:
                    self._due["warm-up"] = self._clock.monotonic() + WARMUP_RETRY_SECONDS
            return
        phase, _ = self._phase(self._clock.monotonic())
        if phase is EndpointPhase.STARTING:
            self._facts = replace(self._facts, warm=False)
        elif phase is EndpointPhase.WARMING and self._is_due("warm-up", self._clock.monotonic()):
            models, _why = self._models()
            if models:
                t = self.target
                self._warm_task = asyncio.get_running_loop().create_task(
                    warm_up(self._http, t.url, t.api_key, models[0].served_as, t.warmup_requests)
                )

    def _cancel_warm_up(self) -> None:
        if self._warm_task is not None:
            self._warm_task.cancel()
            self._warm_task = None

    def _models(self) -> tuple[tuple[ServedModel, ...], str]:
        listed = None if self._served is None else tuple(n.served_as for n in self._served)
        return served_models(self.target.models, listed, strict=self._engine.strict_names)

    def _phase(self, now: float) -> tuple[EndpointPhase, str]:
        phase, reason = engine_phase(self._facts, now, self._limits)
        if phase in (EndpointPhase.READY, EndpointPhase.WARMING):
            models, why = self._models()
            if not models:
                return EndpointPhase.STARTING, why
        return phase, reason

    def _tell(self) -> None:
        phase, reason = self._phase(self._clock.monotonic())
        if phase is EndpointPhase.READY and not self._facts.was_ready:
            self._facts = replace(self._facts, was_ready=True)
        telling = (phase, self._models()[0], self._incarnation, self._facts.auth_failed)
        if telling != self._told:
            if self._told[:1] != (phase,):
                say = log.warning if phase in _TROUBLE else log.info
                say("engine", name=self.target.name, url=self.target.url, phase=phase.value, reason=reason)
            self._told = telling
            self._on_change()

    def report(self, now: float) -> EndpointReport:
        """The engine as it is at ``now``, without devices."""
        target = self.target
        phase, reason = self._phase(now)
        models, _why = self._models()
        load, fresh = load_as_of(
            self._load, self._load_at, now, self._limits.scrape_valid_intervals * self._interval_seconds
        )
        own = EngineShape(target.max_inflight, target.kv_tokens, target.context_tokens)
        shape = own.over(self._metadata_shape).over(self._shape).over(EngineShape(context_tokens=self._context()))
        return EndpointReport(
            uid=target.uid,
            name=target.name,
            kind=target.kind,
            url=target.advertise or target.url,
            models=models,
            phase=phase,
            reason=reason,
            tensor_parallel=target.tensor_parallel,
            max_inflight=shape.max_inflight,
            kv_tokens=shape.kv_tokens,
            context_tokens=shape.context_tokens,
            engine_incarnation=self._incarnation,
            load=load,
            auth_failed=self._facts.auth_failed,
            metrics_fresh=fresh,
            api_key=target.api_key,
        )

    def _context(self) -> int | None:
        sizes = [n.context_tokens for n in self._served or () if n.context_tokens]
        return min(sizes) if sizes else None


def _names(document: Any) -> tuple[ServedName, ...] | None:
    """The models in an answer of ``/v1/models``; None when it is no such answer."""
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list):
        return None
    names: dict[str, ServedName] = {}
    for item in data:
        name = item.get("id") if isinstance(item, dict) else None
        if not isinstance(name, str) or not name or len(name) > 256:
            continue
        names[name] = ServedName(name, _context_of(item), str(item.get("parent") or ""))
    return tuple(names.values())


def _context_of(item: dict[str, Any]) -> int | None:
    """vLLM and SGLang say ``max_model_len``; llama.cpp ``meta.n_ctx``."""
    meta = item.get("meta")
    for value in (item.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None):
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
