"""Continuous batching as vLLM does it, on a clock that is passed in. Pure: no asyncio, no chance, no wall time.

Every step has a token budget. Running sequences come first (a decode is one token, an unfinished prefill a chunk), then the
waiting queue in order of arrival while there is budget, a slot and KV memory. When a running sequence finds no free block,
the one that started last is preempted: it loses its blocks and goes to the front of the queue. Steps happen at their exact
times whenever the caller looks; a stretch of steps that only decode is done in one go, so that nobody has to wake for each.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from headrace.simulated_engine.blocks import BLOCK_TOKENS, BlockPool, Holding
from headrace.simulated_engine.profiles import ReplicaProfile


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence to compute. The caller fills the first three fields; the rest belongs to the scheduler."""

    prompt_tokens: int
    output_tokens: int
    """Tokens to generate; 0 for pooling (embeddings), which ends with the prefill."""
    block_hashes: SequenceOf[int] = ()
    """Chained hashes of the prompt's full blocks."""
    computed: int = 0
    generated: int = 0
    cached: int = 0
    """Prompt tokens that the prefix cache had when it was first admitted."""
    preemptions: int = 0
    submitted_at: float = 0.0
    started_at: float | None = None
    holding: Holding = field(default_factory=Holding)

    @property
    def remaining(self) -> int:
        return self.output_tokens - self.generated

    @property
    def uncomputed(self) -> int:
        return self.prompt_tokens + self.generated - self.computed


@dataclass(frozen=True, slots=True)
class Progress:
    """``tokens`` more of a sequence existed at time ``at``; ``finished`` with the last of them."""

    sequence: Sequence
    tokens: int
    at: float
    finished: bool


@dataclass(slots=True)
class Counters:
    """Totals since the start; they only rise."""

    steps: int = 0
    busy_seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    aborted: int = 0


class ContinuousBatching:
    """The scheduler of one replica. One owner calls it with times that never go back."""

    def __init__(
        self,
        profile: ReplicaProfile,
        *,
        max_sequences: int = 256,
        kv_tokens: int | None = None,
        token_budget: int | None = None,
        speed: float = 1.0,
    ) -> None:
        self.profile = profile
        self.max_sequences = max_sequences
        self.token_budget = token_budget or profile.token_budget
        self.pool = BlockPool((kv_tokens or profile.kv_tokens) // BLOCK_TOKENS)
        self.counters = Counters()
        self._speed = speed
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._plan: list[tuple[Sequence, int]] = []
        self._step_end: float | None = None
        self._paused_at: float | None = None
        self._progress: list[Progress] = []

    # --- what a caller sees -------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        return self.pool.used / self.pool.total

    @property
    def kv_tokens(self) -> int:
        return self.pool.total * BLOCK_TOKENS

    @property
    def speed(self) -> float:
        return self._speed

    # --- what a caller does -------------------------------------------------------------------------------------------

    def submit(self, sequence: Sequence, now: float) -> None:
        """Queue a sequence. Raises ValueError for one that could never fit into this engine's memory."""
        if sequence.prompt_tokens < 1 or sequence.output_tokens < 0:
            raise ValueError("a sequence has at least one prompt token, and no negative output")
        if sequence.prompt_tokens + sequence.output_tokens > self.kv_tokens:
            raise ValueError("the sequence is longer than the KV cache")
        self._run_to(now)
        sequence.submitted_at = now
        self._waiting.append(sequence)
        if self._step_end is None and self._paused_at is None:
            self._start_step(now)

    def abort(self, sequence: Sequence, now: float) -> bool:
        """Drop an unfinished sequence and free what it holds; False when it is not (any longer) here."""
        self._run_to(now)
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        elif sequence in self._running:
            self._running.remove(sequence)
            self._plan = [entry for entry in self._plan if entry[0] is not sequence]
            self.pool.release(sequence.holding)
        else:
            return False
        self._progress = [p for p in self._progress if p.sequence is not sequence]
        self.counters.aborted += 1
        return True

    def advance(self, now: float) -> list[Progress]:
        """Do every step that ends by ``now``; what became of it, in order of time."""
        self._run_to(now)
        progress, self._progress = self._progress, []
        return progress

    def set_speed(self, speed: float, now: float) -> None:
        """How fast steps are against the profile; what is left of the step in flight too. Raises ValueError unless above 0."""
        if speed <= 0:
            raise ValueError("speed must be above 0")
        self._run_to(now)
        if self._step_end is not None:
            since = now if self._paused_at is None else self._paused_at
            self._step_end = since + (self._step_end - since) * self._speed / speed
        self._speed = speed

    def pause(self, now: float) -> None:
        """Freeze: sequences stay where they are and no step ends (a hung engine)."""
        self._run_to(now)
        if self._paused_at is None:
            self._paused_at = now

    def resume(self, now: float) -> None:
        if self._paused_at is None:
            return
        frozen = now - self._paused_at
        self._paused_at = None
        if self._step_end is not None:
            self._step_end += frozen
        else:
            self._start_step(now)

    def next_step_end(self) -> float | None:
        """When the step in flight ends; None when idle or paused."""
        return None if self._paused_at is not None else self._step_end

    def next_notable(self) -> float | None:
        """When, if nothing arrives, a sequence next gets its first token or finishes: until then nobody need wake."""
        end = self.next_step_end()
        if end is None or not self._plan:
            return end
        if any(not self._decodes(sequence, tokens) for sequence, tokens in self._plan) or self._head_fits():
            return end
        steps = min(sequence.remaining for sequence, _ in self._plan) - 1
        if steps <= 0 or self._blocks_for(steps + 1) > self.pool.free:
            return end
        batch = len(self._plan)
        context = sum(sequence.computed + 2 for sequence, _ in self._plan)
        return end + self._stretch_seconds(batch, context, steps)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _run_to(self, now: float) -> None:
        if self._paused_at is not None:
            return
        while self._step_end is not None and self._step_end <= now:
            at = self._step_end
            self._finish_step(at)
            self._start_step(self._decode_stretch(at, now))

    @staticmethod
    def _decodes(sequence: Sequence, tokens: int) -> bool:
        return tokens == 1 and sequence.generated > 0

    def _start_step(self, now: float) -> None:
        plan: list[tuple[Sequence, int]] = []
        self._plan = plan
        budget, preempted = self._plan_running(plan)
        if not preempted:
            self._admit(plan, budget, now)
        if not plan:
            self._step_end = None
            return
        batch = context = 0
        chunks: list[tuple[int, int]] = []
        for sequence, tokens in plan:
            if self._decodes(sequence, tokens):
                batch += 1
                context += sequence.computed + 1
            else:
                chunks.append((tokens, sequence.computed))
        seconds = self.profile.step_seconds(batch, context, chunks) / self._speed
        self.counters.steps += 1
        self.counters.busy_seconds += seconds
        self._step_end = now + seconds

    def _plan_running(self, plan: list[tuple[Sequence, int]]) -> tuple[int, bool]:
        """Plan those that run already, preempting from the end for memory. Gives the budget left, and whether it preempted."""
        budget, preempted, index = self.token_budget, False, 0
        while index < len(self._running) and budget > 0:
            sequence = self._running[index]
            tokens = min(sequence.uncomputed, budget)
            while not self.pool.grow(sequence.holding, sequence.computed + tokens):
                victim = self._running.pop()
                self.pool.release(victim.holding)
                victim.computed = 0
                victim.preemptions += 1
                self.counters.preemptions += 1
                self._waiting.appendleft(victim)
                preempted = True
                if victim is sequence:
                    return budget, True
            plan.append((sequence, tokens))
            budget -= tokens
            index += 1
        return budget, preempted

    def _admit(self, plan: list[tuple[Sequence, int]], budget: int, now: float) -> None:
        while self._waiting and budget > 0 and len(self._running) < self.max_sequences:
            sequence = self._waiting[0]
            known = self._known_prefix(sequence)
            tokens = min(sequence.prompt_tokens + sequence.generated - known * BLOCK_TOKENS, budget)
            if not self._fits(sequence, known, tokens):
                return
            self._waiting.popleft()
            self.pool.take_prefix(sequence.holding, sequence.block_hashes[:known])
            sequence.computed = known * BLOCK_TOKENS
            self.pool.grow(sequence.holding, sequence.computed + tokens)
            self._running.append(sequence)
            if sequence.started_at is None:
                sequence.started_at = now
                sequence.cached = sequence.computed
                self.counters.prompt_tokens += sequence.prompt_tokens
                self.counters.cached_tokens += sequence.cached
            plan.append((sequence, tokens))
            budget -= tokens

    def _known_prefix(self, sequence: Sequence) -> int:
        """Leading blocks it need not compute; at least one token is always computed."""
        limit = (sequence.prompt_tokens + sequence.generated - 1) // BLOCK_TOKENS
        return self.pool.known_prefix(sequence.block_hashes, limit)

    def _fits(self, sequence: Sequence, known: int, tokens: int) -> bool:
        wanted = -(-(known * BLOCK_TOKENS + tokens) // BLOCK_TOKENS) - known
        return wanted + self.pool.idle_among(sequence.block_hashes[:known]) <= self.pool.free

    def _head_fits(self) -> bool:
        """Whether the next step would take the first of the queue."""
        if not self._waiting or len(self._running) >= self.max_sequences:
            return False
        head = self._waiting[0]
        known = self._known_prefix(head)
        total = head.prompt_tokens + head.generated - known * BLOCK_TOKENS
        return self._fits(head, known, min(total, max(1, self.token_budget - len(self._running))))

    def _finish_step(self, at: float) -> None:
        finished: set[int] = set()
        for sequence, tokens in self._plan:
            before = sequence.computed // BLOCK_TOKENS
            sequence.computed += tokens
            for block in range(before, min(sequence.computed // BLOCK_TOKENS, len(sequence.block_hashes))):
                self.pool.register(sequence.holding, sequence.block_hashes[block])
            if sequence.uncomputed > 0:
                continue
            if sequence.output_tokens:
                sequence.generated += 1
                self.counters.generated_tokens += 1
            done = sequence.remaining <= 0
            self._progress.append(Progress(sequence, 1 if sequence.output_tokens else 0, at, done))
            if done:
                finished.add(id(sequence))
                self.pool.release(sequence.holding)
                self.counters.finished += 1
        self._plan = []
        if finished:
            self._running = [s for s in self._running if id(s) not in finished]

    # --- many decode steps at once ------------------------------------------------------------------------------------

    def _stretch_seconds(self, batch: int, context: int, steps: int) -> float:
        """Duration of ``steps`` steps that only decode, ``context`` being the sum of contexts in the first of them."""
        p = self.profile
        first = p.decode_d0_ms + p.decode_d1_us_per_sequence * batch / 1e3
        growth = p.decode_d2_ns_per_kv_token / 1e6
        return (steps * first + growth * (context * steps + batch * steps * (steps - 1) / 2)) / 1e3 / self._speed

    def _blocks_for(self, steps: int) -> int:
        return sum(
            max(0, -(-(s.computed + steps) // BLOCK_TOKENS) - s.holding.blocks)  # what each lacks to hold that much
            for s in self._running
        )

    def _decode_stretch(self, at: float, now: float) -> float:
        """From a step boundary, do all steps by ``now`` in which nothing but decoding happens; the time it then is."""
        running = self._running
        if (
            not running
            or len(running) > self.token_budget
            or any(s.uncomputed != 1 or not s.generated for s in running)
        ):
            return at
        most = min(s.remaining for s in running) - 1
        if most < 1 or self._head_fits():
            return at
        batch, context = len(running), sum(s.computed + 1 for s in running)
        steps = min(most, self._steps_within(batch, context, now - at))
        if steps < 1 or self._blocks_for(steps) > self.pool.free:
            return at
        seconds = self._stretch_seconds(batch, context, steps)
        end = at + seconds
        for sequence in running:
            self.pool.grow(sequence.holding, sequence.computed + steps)
            sequence.computed += steps
            sequence.generated += steps
            self._progress.append(Progress(sequence, steps, end, False))
        self.counters.generated_tokens += batch * steps
        self.counters.steps += steps
        self.counters.busy_seconds += seconds
        return end

    def _steps_within(self, batch: int, context: int, seconds: float) -> int:
        """How many such steps end within ``seconds``: the root of a quadratic, then corrected for rounding."""
        p = self.profile
        growth = p.decode_d2_ns_per_kv_token / 1e6
        a = growth * batch / 2
        b = p.decode_d0_ms + p.decode_d1_us_per_sequence * batch / 1e3 + growth * context - a
        budget_ms = seconds * 1e3 * self._speed
        guess = budget_ms / b if a == 0 else (math.sqrt(b * b + 4 * a * budget_ms) - b) / (2 * a)
        steps = max(0, int(guess))
        while steps and self._stretch_seconds(batch, context, steps) > seconds:
            steps -= 1
        while self._stretch_seconds(batch, context, steps + 1) <= seconds:
            steps += 1
        return steps
