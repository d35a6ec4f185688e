"""Laws of the simulated engine's scheduler, and its step times against the formula and the published measurements."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import InvalidInput
from headrace.simulated_engine import tokens
from headrace.simulated_engine.blocks import BLOCK_TOKENS, BlockPool, Holding
from headrace.simulated_engine.profiles import ReplicaProfile, find_profile, load_profiles
from headrace.simulated_engine.scheduler import ContinuousBatching, Progress, Sequence

H100 = find_profile("h100-sxm-80")

arrivals = st.lists(
    st.tuples(
        st.floats(0, 0.3),  # gap
        st.integers(1, 400),  # prompt tokens
        st.integers(0, 60),  # output tokens
        st.integers(0, 3),  # which prefix it shares
        st.one_of(st.none(), st.floats(0, 0.5)),  # aborted so long after it came
    ),
    min_size=1,
    max_size=25,
)


def _sequence(prompt: int, output: int, prefix: int) -> Sequence:
    text = (f"prefix {prefix} " * 400).encode()[: prompt * tokens.TOKEN_BYTES]
    return Sequence(prompt, output, tokens.block_hashes(text))


def _play(
    plan: list[tuple[float, int, int, int, float | None]], *, look_every: float, **options: int
) -> tuple[ContinuousBatching, list[Progress], list[tuple[Sequence, bool]]]:
    """Run arrivals and aborts at their exact times, looking in between at a given interval; check the laws at each look."""
    engine = ContinuousBatching(H100, **options)
    agenda: list[tuple[float, int, str, Sequence]] = []
    sequences: list[tuple[Sequence, bool]] = []
    at = 0.0
    for order, (gap, prompt, output, prefix, abort_after) in enumerate(plan):
        at += gap
        sequence = _sequence(prompt, output, prefix)
        agenda.append((at, 2 * order, "submit", sequence))
        if abort_after is not None:
            agenda.append((at + abort_after, 2 * order + 1, "abort", sequence))
        sequences.append((sequence, abort_after is not None))
    agenda.sort(key=lambda item: item[:2])
    progress: list[Progress] = []
    now = 0.0
    looks = 0
    while agenda or engine.running or engine.waiting:
        due = agenda[0][0] if agenda else float("inf")
        now = min(now + look_every, due)
        progress += engine.advance(now)
        while agenda and agenda[0][0] <= now:
            _, _, what, sequence = agenda.pop(0)
            if what == "submit":
                engine.submit(sequence, now)
            else:
                engine.abort(sequence, now)
        assert 0 <= engine.pool.used <= engine.pool.total
        assert engine.pool.used + engine.pool.cached <= engine.pool.total
        assert engine.running <= engine.max_sequences
        looks += 1
        assert looks < 200_000, "the engine makes no progress"
    return engine, progress, sequences


@settings(max_examples=60, deadline=None)
@given(arrivals)
def test_memory_is_never_exceeded_and_no_work_is_lost(plan: list[tuple[float, int, int, int, float | None]]) -> None:
    engine, progress, sequences = _play(plan, look_every=0.004, kv_tokens=512, max_sequences=6, token_budget=128)
    finished = {id(p.sequence) for p in progress if p.finished}
    for sequence, may_abort in sequences:
        if id(sequence) in finished:
            got = sum(p.tokens for p in progress if p.sequence is sequence)
            assert got == sequence.output_tokens
        else:
            assert may_abort
    assert engine.counters.finished + engine.counters.aborted == len(sequences)
    assert engine.pool.used == 0
    assert all(s.holding.blocks == 0 for s, _ in sequences)


@settings(max_examples=40, deadline=None)
@given(arrivals)
def test_looking_rarely_gives_what_looking_often_gives(
    plan: list[tuple[float, int, int, int, float | None]],
) -> None:
    plan = [(gap, prompt, output, prefix, None) for gap, prompt, output, prefix, _ in plan]
    rare, seldom, one = _play(plan, look_every=1e9, kv_tokens=4096, max_sequences=8)
    often, oftener, other = _play(plan, look_every=0.0011, kv_tokens=4096, max_sequences=8)
    assert rare.counters.steps == often.counters.steps
    assert rare.counters.busy_seconds == pytest.approx(often.counters.busy_seconds)
    assert rare.counters.cached_tokens == often.counters.cached_tokens
    ends_rare = {id(p.sequence): p.at for p in seldom if p.finished}
    ends_often = {id(p.sequence): p.at for p in oftener if p.finished}
    for (a, _), (b, _) in zip(one, other, strict=True):
        assert ends_rare[id(a)] == pytest.approx(ends_often[id(b)])


@settings(max_examples=60, deadline=None)
@given(arrivals)
def test_times_never_go_back_and_order_of_arrival_holds_without_preemption(
    plan: list[tuple[float, int, int, int, float | None]],
) -> None:
    engine, progress, sequences = _play(plan, look_every=0.01, max_sequences=4)
    assert engine.counters.preemptions == 0
    by_sequence: dict[int, float] = {}
    for p in progress:
        assert p.at >= by_sequence.get(id(p.sequence), 0.0)
        by_sequence[id(p.sequence)] = p.at
    starts = [s.started_at for s, _ in sequences if s.started_at is not None]
    assert starts == sorted(starts)


def test_waking_only_for_notable_moments_misses_none() -> None:
    engine = ContinuousBatching(H100)
    engine.submit(Sequence(700, 50), 0.0)
    engine.submit(Sequence(30, 9), 0.0)
    notable: list[tuple[float, bool]] = []
    wakes = 0
    while (at := engine.next_notable()) is not None:
        wakes += 1
        for p in engine.advance(at):
            assert p.at <= at
            if p.finished or p.sequence.generated == p.tokens:
                notable.append((p.at, p.at == at))
    assert wakes <= 8
    assert len([n for n in notable if n[1]]) == 4, "two first tokens and two ends, each at its very time"
    assert engine.running == 0


def test_abort_frees_the_slot_for_the_next_in_the_queue() -> None:
    engine = ContinuousBatching(H100, max_sequences=1)
    first, second = Sequence(100, 1000), Sequence(100, 2)
    engine.submit(first, 0.0)
    engine.submit(second, 0.0)
    engine.advance(0.1)
    assert (engine.running, engine.waiting) == (1, 1)
    assert engine.abort(first, 0.1)
    assert not engine.abort(first, 0.1)
    assert [p.sequence for p in engine.advance(0.3) if p.finished] == [second]
    assert engine.pool.used == 0


def test_case_f05_an_abandoned_request_in_the_queue_is_never_run() -> None:
    engine = ContinuousBatching(H100, max_sequences=1)
    running, last = Sequence(10, 200), Sequence(10, 1)
    abandoned = [Sequence(10, 50) for _ in range(5)]
    engine.submit(running, 0.0)
    for sequence in abandoned:
        engine.submit(sequence, 0.0)
    for sequence in abandoned:
        assert engine.abort(sequence, 0.5)
    engine.submit(last, 0.5)
    assert engine.waiting == 1
    ends = [p.sequence for p in engine.advance(60.0) if p.finished]
    assert ends == [running, last]
    assert all(s.started_at is None for s in abandoned)


def test_shared_prefixes_are_computed_once() -> None:
    engine = ContinuousBatching(H100)
    first = _sequence(320, 2, 0)
    engine.submit(first, 0.0)
    engine.advance(1.0)
    again = _sequence(320, 2, 0)
    engine.submit(again, 1.0)
    [*_, end] = engine.advance(2.0)
    assert (first.cached, again.cached) == (0, 304)  # all but the last block: one token is always computed
    assert end.at - 1.0 < end.sequence.submitted_at + 1.0
    assert engine.counters.cached_tokens == 304


def test_preemption_gives_memory_to_the_older_sequence() -> None:
    engine = ContinuousBatching(H100, kv_tokens=20 * BLOCK_TOKENS)
    older, younger = Sequence(9 * BLOCK_TOKENS, 100), Sequence(9 * BLOCK_TOKENS, 100)
    engine.submit(older, 0.0)
    engine.submit(younger, 0.0)
    ends = [p.sequence for p in engine.advance(1e6) if p.finished]
    assert ends == [older, younger]
    assert younger.preemptions >= 1
    assert older.preemptions == 0


def test_a_hung_engine_keeps_everything_and_goes_on_where_it_was() -> None:
    engine = ContinuousBatching(H100)
    sequence = Sequence(100, 10)
    engine.submit(sequence, 0.0)
    engine.pause(0.02)
    assert engine.advance(100.0)[-1].at <= 0.02
    assert engine.next_step_end() is None
    done_before = sequence.generated
    engine.resume(100.0)
    [*_, end] = engine.advance(101.0)
    assert end.finished
    assert end.at > 100.0
    assert 0 < done_before < 10


def test_speed_stretches_steps() -> None:
    def end_of(speed: float) -> float:
        engine = ContinuousBatching(H100, speed=speed)
        engine.submit(Sequence(50, 20), 0.0)
        return engine.advance(1e6)[-1].at

    assert end_of(0.1) == pytest.approx(10 * end_of(1.0))


def test_what_can_never_fit_is_refused() -> None:
    engine = ContinuousBatching(H100, kv_tokens=160)
    with pytest.raises(ValueError, match="longer than the KV cache"):
        engine.submit(Sequence(100, 61), 0.0)
    with pytest.raises(ValueError, match="at least one prompt token"):
        engine.submit(Sequence(0, 1), 0.0)
    assert engine.waiting == 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(1, 90)), max_size=60))
def test_every_block_is_in_one_state(steps: list[tuple[int, int, int]]) -> None:
    pool = BlockPool(12)
    holdings = [Holding() for _ in range(5)]
    hashes = {p: tokens.block_hashes((f"{p}" * 64 * 8).encode()) for p in range(4)}
    prefix_of: dict[int, int] = {}
    for index, prefix, size in steps:
        holding = holdings[index]
        if holding.blocks and size % 3 == 0:
            pool.release(holding)
        elif not holding.blocks:
            known = pool.known_prefix(hashes[prefix], 8)
            if pool.idle_among(hashes[prefix][:known]) <= pool.free:
                pool.take_prefix(holding, hashes[prefix][:known])
                prefix_of[index] = prefix
        else:
            pool.grow(holding, size)
            done = len(holding.shared)
            if holding.private and done < 8:
                pool.register(holding, hashes[prefix_of[index]][done])
        assert pool.used + pool.cached <= pool.total
        distinct = {h for x in holdings for h in x.shared}
        assert pool.used == len(distinct) + sum(x.private for x in holdings)


@pytest.mark.parametrize(
    "profile", load_profiles(), ids=lambda p: f"{p.product}-{p.model}-{p.tensor_parallel}-{p.precision}"
)
def test_one_request_alone_takes_what_the_formula_says(profile: ReplicaProfile) -> None:
    p = profile
    engine = ContinuousBatching(p)
    engine.submit(Sequence(512, 3), 0.0)
    times = [x.at for x in engine.advance(1e6)]
    attention = p.prefill_q_ns_per_token2 * 512 * 256 / 1e6
    prefill = max(p.prefill_floor_ms, p.prefill_a_ms + p.prefill_b_us_per_token * 512 / 1e3 + attention)
    decode = p.decode_d0_ms + p.decode_d1_us_per_sequence / 1e3 + p.decode_d2_ns_per_kv_token * 513 / 1e6
    assert times[0] == pytest.approx(prefill / 1e3)
    assert times[1] - times[0] == pytest.approx(decode / 1e3)


# TPOT measured on real servers (vLLM, H100, fp8, Llama-3.1-70B) under steady concurrency; ai-dynamo/aiconfigurator
# @ 095f58a5 `silicon_sample.csv`, Apache-2.0: tensor parallel, input, output, concurrency, ms.
MEASURED_TPOT = [
    (2, 1024, 1024, 4, 17.407),
    (2, 1024, 1024, 16, 19.74),
    (2, 1024, 1024, 64, 28.769),
    (4, 1024, 1024, 8, 12.11),
    (4, 1024, 1024, 64, 19.515),
    (4, 8192, 1024, 16, 21.064),
    (8, 1024, 1024, 16, 11.392),
    (8, 8192, 1024, 8, 11.588),
]


@pytest.mark.parametrize(("tensor_parallel", "prompt", "output", "concurrency", "measured_ms"), MEASURED_TPOT)
def test_steady_concurrency_gives_the_measured_time_per_token(
    tensor_parallel: int, prompt: int, output: int, concurrency: int, measured_ms: float
) -> None:
    engine = ContinuousBatching(find_profile("h100-sxm-80", "Meta-Llama-3.1-70B", tensor_parallel, "fp8"))
    # Clients that were at it for a while: each asks again when it got its answer.
    for _ in range(concurrency):
        engine.submit(Sequence(prompt, output), 0.0)
    first: dict[Sequence, float] = {}
    tpots: list[float] = []
    now = 0.0
    while len(tpots) < 3 * concurrency:
        now = engine.next_notable() or now
        for p in engine.advance(now):
            first.setdefault(p.sequence, p.at)
            if p.finished:
                tpots.append((p.at - first[p.sequence]) / (output - 1) * 1e3)
                engine.submit(Sequence(prompt, output), now)
    steady = tpots[concurrency:]
    assert sum(steady) / len(steady) == pytest.approx(measured_ms, rel=0.25)  # the fit itself is 1-11 % off


def test_unknown_hardware_says_what_there_is() -> None:
    with pytest.raises(InvalidInput, match="known products: a100-sxm-80"):
        find_profile("tpu-v9")
