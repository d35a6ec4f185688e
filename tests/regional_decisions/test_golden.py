"""Stories of decisions as text, in ``tests/golden``. Read the diff when one changes; write them anew with

HEADRACE_UPDATE_GOLDEN=1 python -m pytest tests/regional_decisions/test_golden.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleet.accelerator import DeviceHealth
from fleet.endpoint import EngineLoad
from fleet.intent import HoldState
from fleet.report import AgentPhase
from fleet.request import Usage
from fleet.tenancy import Residency
from regional.fleetview.peers import PeerProbe
from regional.health.actions import Action, ProbeEndpoints
from regional.request.life import Life
from regional.request.steps import (
    AttemptResult,
    Outcome,
    Reject,
    SendToEndpoint,
    SendToRegion,
    Step,
    WaitFor,
)
from tests.regional_decisions.fleets import (
    ASHBURN,
    PARIS,
    REGIONS,
    Rig,
    endpoint,
    facts,
    gpu,
    hold,
    intent,
    policy,
    simple,
)
from tests.regional_decisions.test_routing import row

GOLDEN = Path(__file__).parent.parent / "golden"


@dataclass
class Story:
    """Tells what happens line by line, time first."""

    rig: Rig
    lines: list[str] = field(default_factory=list)
    began: float = 0.0
    lives: dict[str, tuple[Life, Step]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    """Endpoints that answer no probe."""

    def __post_init__(self) -> None:
        self.began = self.rig.now

    def say(self, text: str) -> None:
        self.lines.append(f"{self.rig.now - self.began:7.2f}  {text}")

    def ask(self, uid: str, **changes: object) -> Step:
        life, step = self.rig.core.begin(facts(uid, **changes), self.rig.now, lambda: self.say(f"{uid}: revoked"))
        self.lives[uid] = (life, step)
        self.say(f"{uid}: begin -> {told(step)}")
        return step

    def fail(self, uid: str, outcome: Outcome, status: int | None = None, pause: float | None = None) -> Step:
        life, _ = self.lives[uid]
        step = life.on_attempt_failed(AttemptResult(outcome, status, pause), self.rig.now)
        self.lives[uid] = (life, step)
        self.say(f"{uid}: {outcome.value}{f' {status}' if status else ''} -> {told(step)}")
        return step

    def wait(self, uid: str) -> Step:
        life, step = self.lives[uid]
        assert isinstance(step, WaitFor)
        self.rig.tick(step.seconds)
        step = life.on_wait_over(self.rig.now)
        self.lives[uid] = (life, step)
        self.say(f"{uid}: waited -> {told(step)}")
        return step

    def end(self, uid: str, outcome: Outcome = Outcome.OK) -> None:
        life, step = self.lives.pop(uid)
        if not isinstance(step, Reject):
            life.on_first_byte(self.rig.now)
        record = life.on_end(Outcome.REJECTED if isinstance(step, Reject) else outcome, Usage(100, 20, 0), self.rig.now)
        self.say(
            f"{uid}: end {record.outcome.value}, attempts {record.attempts},"
            f" failovers {record.failovers}, retries {record.retries}"
        )

    def where(self, count: int, **changes: object) -> None:
        """Where so many requests go, one after the other."""
        found: dict[str, int] = {}
        for i in range(count):
            life, step = self.rig.core.begin(facts(f"w{i}", **changes), self.rig.now, lambda: None)
            life.on_end(Outcome.ABORTED, Usage(), self.rig.now)
            name = f"reject {step.reason.value}" if isinstance(step, Reject) else told(step)
            found[name] = found.get(name, 0) + 1
        self.say(f"{count} requests -> " + ", ".join(sorted(found)))

    def report(self, name: str, **changes: object) -> None:
        """Its node reports; what the core says to that is told."""
        before = len(self.rig.actions)
        given: dict[str, object] = {"gpus": [gpu(f"GPU-{name}")], **changes}
        self.rig.report(f"node-{name}", [endpoint(name, [f"GPU-{name}"])], zone=f"eu-west-{name[0]}", **given)  # type: ignore[arg-type]
        self.tell(self.rig.actions[before:])

    def tell(self, actions: tuple[Action, ...] | list[Action]) -> None:
        for action in actions:
            if isinstance(action, ProbeEndpoints):
                continue
            fields = {
                name: getattr(action, name)
                for name in ("scope", "name", "node_name", "reason", "seconds", "silent_seconds")
                if hasattr(action, name)
            }
            shown = " ".join(f"{k}={v:.2f}" if isinstance(v, float) else f"{k}={v}" for k, v in fields.items())
            self.say(f"{type(action).__name__} {shown}")

    def run(self, seconds: float, beating: tuple[str, ...] = ()) -> None:
        """Time passes; what the core says is told as it comes."""
        for _ in range(round(seconds / 0.05)):
            before = len(self.rig.actions)
            self.rig.run(0.05, dict.fromkeys(self.silent, False), beating)
            self.tell(self.rig.actions[before:])

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def told(step: Step) -> str:
    if isinstance(step, SendToEndpoint):
        return step.target.name
    if isinstance(step, SendToRegion):
        return f"region {step.region} by {step.addresses[0] if step.addresses else 'nobody'}"
    if isinstance(step, WaitFor):
        return f"wait {step.seconds:.3f}"
    after = "" if step.retry_after_seconds is None else f", retry after {step.retry_after_seconds:.2f}"
    never = ", no use in retrying" if step.should_retry is False else ""
    return f"reject {step.reason.value}{after}{never}"


def a_gpu_fails() -> Story:
    story = Story(simple({"eu-west-a": 2, "eu-west-b": 1}))
    for i in range(3):
        story.ask(f"q{i}")
    story.lives["q0"][0].on_first_byte(story.rig.now)
    story.say("q0: first byte")
    for name in ("a1", "a2", "b1"):
        story.say(f"GPU of {name} fails")
        story.report(name, gpus=[gpu(f"GPU-{name}", DeviceHealth.FAILED)])
        story.where(20)
    story.say("GPU of a1 is well again")
    story.report("a1")
    story.where(20)
    for uid in ("q1", "q2"):
        if isinstance(story.fail(uid, Outcome.DECLARED_DEAD), WaitFor):
            story.wait(uid)
        story.end(uid)
    story.end("q0")
    return story


def a_node_falls_silent_and_comes_back() -> Story:
    story = Story(simple({"eu-west-a": 2}))
    story.silent = {"a1"}
    story.run(2.5, beating=("a2",))
    story.where(20)
    story.silent = set()
    story.say("a1 answers again, its agent does not")
    story.run(1.0, beating=("a2",))
    story.say("its agent reports again")
    story.run(1.0, beating=("a1", "a2"))
    story.where(20)
    return story


def an_agent_restarts() -> Story:
    story = Story(simple({"eu-west-a": 1}))
    story.say("the agent says it restarts, and its stream closes")
    story.report("a1", phase=AgentPhase.RESTARTING)
    story.tell(story.rig.core.on_stream_closed("node-a1", story.rig.now))
    story.run(3.0)
    story.where(10)
    story.say("it is back")
    story.report("a1", incarnation=2)
    story.run(0.5)
    return story


def an_engine_hangs() -> Story:
    story = Story(simple({"eu-west-a": 1, "eu-west-b": 1}))
    for i in range(4):
        story.ask(f"q{i}")
    hung = "a1"
    for uid, (life, step) in story.lives.items():
        if told(step) != hung:
            life.on_first_byte(story.rig.now)
            story.say(f"{uid}: first byte")
    story.silent = {hung}
    story.run(1.5, beating=("a1",))
    for uid, (_, step) in list(story.lives.items()):
        if told(step) == hung:
            story.fail(uid, Outcome.DECLARED_DEAD)
        story.end(uid)
    return story


def failures_move_a_request_on() -> Story:
    story = Story(simple({"eu-west-a": 4, "eu-west-b": 2}))
    story.ask("refused")
    story.fail("refused", Outcome.CONNECT_FAILED)
    story.fail("refused", Outcome.CONNECT_FAILED)
    story.fail("refused", Outcome.CONNECT_FAILED)
    story.end("refused")
    story.ask("stale")
    story.fail("stale", Outcome.STALE_CONNECTION)
    story.fail("stale", Outcome.STALE_CONNECTION)
    story.end("stale")
    story.ask("errors")
    story.fail("errors", Outcome.UPSTREAM_ERROR, 500)
    story.fail("errors", Outcome.BAD_RESPONSE, 200)
    story.fail("errors", Outcome.UPSTREAM_ERROR, 502)
    story.end("errors")
    story.ask("too-late", deadline_seconds=1.0)
    story.rig.tick(1.0)
    story.fail("too-late", Outcome.TIMEOUT_FIRST_BYTE)
    story.end("too-late")
    return story


def a_lone_engine_asks_for_a_pause() -> Story:
    story = Story(simple({"eu-west-a": 1}))
    story.ask("patient")
    story.fail("patient", Outcome.OVERLOADED, 429, 0.5)
    story.ask("other")
    story.wait("patient")
    story.end("patient")
    story.ask("again")
    story.fail("again", Outcome.OVERLOADED, 503, 20.0)
    story.end("again")
    story.wait("other")
    story.end("other")
    return story


def an_endpoint_is_ejected_tried_and_readmitted() -> Story:
    story = Story(simple({"eu-west-a": 3}, given=intent(policies=policy("round-robin"))))
    n = 0
    while not any(line.find("Ejected") >= 0 for line in story.lines):
        uid = f"q{n}"
        n += 1
        if told(story.ask(uid)) == "a1":
            story.fail(uid, Outcome.UPSTREAM_ERROR, 500)
        story.end(uid)
        story.run(0.05)
    story.where(9)
    for _ in range(2):
        story.rig.beat(2.1)
        story.say("two seconds later")
        for i in range(4):
            uid = f"t{i}"
            if told(story.ask(uid)) == "a1":
                break
            story.end(uid)
        story.end(uid)
    story.run(0.05)
    return story


def a_session_lives_somewhere() -> Story:
    story = Story(simple({"eu-west-a": 2, "eu-west-b": 2}))
    session = "5e5510" * 10
    story.where(5, session=session)
    home = told(story.ask("q", session=session))
    story.end("q")
    for state in HoldState:
        story.say(f"{home} is {state.value}")
        story.rig.view.set_intent(intent(2, holds=hold("endpoint", home, state)), story.rig.now)
        story.where(5, session=session)
    story.say("released")
    story.rig.view.set_intent(intent(3), story.rig.now)
    story.where(5, session=session)
    return story


def a_region_is_lost() -> Story:
    story = Story(simple({"us-east-a": 1}, region="us-east"))
    rig = story.rig

    def probe(region: str, ok: bool) -> None:
        rows = (row(f"{region}-a"),) if ok else None
        rig.view.set_peer_probe(region, PeerProbe(REGIONS[region].public_url, ok, True, 0.08, rows), rig.now)

    def say_where() -> None:
        story.say("a client in Paris, one in Ashburn, one in Paris that may not leave the EU:")
        for origin, border in ((PARIS, ""), (ASHBURN, ""), (PARIS, "EU")):
            residency = Residency(frozenset({border} if border else ()), relay_ingress=True)
            story.where(3, origin=origin, residency=residency)

    probe("eu-west", True)
    probe("ap-east", True)
    rig.tick(0.2)
    say_where()
    story.ask("waiting", origin=PARIS)
    for _ in range(4):
        rig.beat(1.0)
        probe("eu-west", False)
        probe("ap-east", True)
    story.say("eu-west has not answered for more than three seconds")
    story.fail("waiting", Outcome.DECLARED_DEAD)
    say_where()
    probe("eu-west", True)
    rig.beat(0.2)
    story.say("eu-west answers again")
    say_where()
    story.end("waiting")
    return story


def a_decision_explains_itself() -> Story:
    story = Story(simple({"eu-west-a": 2, "eu-west-b": 1}, given=intent(holds=hold("endpoint", "a2"))))
    story.rig.beat(6.0)
    story.rig.report(
        "node-slow",
        [endpoint("slow", ["GPU-s"], load=EngineLoad(running=30, waiting=5, kv_usage=0.95, sample_age_seconds=0.1))],
        gpus=[gpu("GPU-s", product="l40s-48")],
    )
    story.rig.tick(0.1)
    (version,) = story.rig.core.explain(facts(input_tokens=2000), story.rig.now)["versions"]  # type: ignore[misc]
    for key in ("model", "region", "home", "zone", "policy", "endpoints", "removed", "reason"):
        story.say(f"{key}: {version[key]}")
    for term in version["best"]:
        shown = " ".join(f"{k}={v:.4f}" if isinstance(v, float) else f"{k}={v}" for k, v in term.items() if k != "cost")
        story.say(f"best: {shown}")
    return story


STORIES: list[Callable[[], Story]] = [
    a_gpu_fails,
    a_node_falls_silent_and_comes_back,
    an_agent_restarts,
    an_engine_hangs,
    failures_move_a_request_on,
    a_lone_engine_asks_for_a_pause,
    an_endpoint_is_ejected_tried_and_readmitted,
    a_session_lives_somewhere,
    a_region_is_lost,
    a_decision_explains_itself,
]


@pytest.mark.parametrize("tell", STORIES, ids=lambda s: s.__name__)
def test_the_story_is_as_it_was(tell: Callable[[], Story]) -> None:
    text = tell().text()
    path = GOLDEN / f"{tell.__name__}.txt"
    if os.environ.get("HEADRACE_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def test_every_transcript_has_its_story() -> None:
    assert {p.stem for p in GOLDEN.glob("*.txt")} == {s.__name__ for s in STORIES}
