"""Who may ask, for what, from where."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest

from fleet.intent import Intent, Model, Route, Split
from fleet.locality import Coordinates, Origin, Region
from fleet.resources.keys import key_digest, make_key
from fleet.tenancy import Residency, SlaClass, Tenant, TenantKey
from regional.gateway.auth import Authenticator, common_patterns
from regional.metrics import RouterMetrics
from tests.gateway.conftest import StartGateway, StartUpstream
from tests.gateway.parts import KEY, PEPPER, chat, intent_with, post, to

EU = frozenset({"EU"})
US = frozenset({"US"})


def key_of(secret: str, pepper: bytes = PEPPER, **more: object) -> TenantKey:
    return TenantKey(f"k-{secret}", secret, "acme", key_digest(pepper, secret), **more)  # type: ignore[arg-type]


async def test_keys_that_are_not_good(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    engine = await upstream()
    keys = (
        key_of(KEY),
        key_of("expired-key", expires_at=time.time() - 1),
        key_of("revoked-key", revoked=True),
        replace(key_of("orphan-key"), tenant="nobody"),
        key_of("other-pepper-key", pepper=b"old"),
    )
    run = await start_gateway(to(engine), intent=intent_with(keys=keys))
    ours = make_key(b"x" * 20)
    for bad in (
        None,
        "",
        "short",
        "unknown-key-of-nobody",
        "expired-key",
        "revoked-key",
        "orphan-key",
        "other-pepper-key",
        ours,
        ours[:-1] + "0",
    ):
        reply = await run.ask(post(chat(), key=bad))
        assert reply.status == 401, bad
        assert reply.error["code"] == "invalid_api_key"
        assert reply.error["type"] == "invalid_request_error"
        assert bad is None or not bad or bad.encode() not in reply.body
    for scheme in (b"Basic", b"Token", b""):
        request = post(chat(), key=None, extra=b"Authorization: %b %b\r\n" % (scheme, KEY.encode()))
        assert (await run.ask(request)).status == 401
    assert (await run.ask(post(chat(), key=None, extra=b"authorization: bearer  %b\r\n" % KEY.encode()))).status == 200
    assert len(engine.requests) == 1


async def test_a_change_of_intent_counts_from_the_next_request(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    run = await start_gateway(to(await upstream()))
    client = await run.client()

    async def status() -> int:
        await client.send(post(chat()))
        return (await client.reply()).status

    assert [await status(), await status()] == [200, 200]  # the second takes the short way
    before = run.intent
    run.intent = intent_with(keys=(key_of(KEY, revoked=True),))
    assert await status() == 401
    run.intent = before
    assert await status() == 200
    run.intent = intent_with(keys=(key_of(KEY, expires_at=time.time() + 0.3),))
    assert await status() == 200
    await asyncio.sleep(0.35)
    assert await status() == 401


def test_every_pepper_is_tried() -> None:
    intent = intent_with(keys=(key_of(KEY, pepper=b"older"),))
    intent = replace(intent, secrets=replace(intent.secrets, peppers=(b"newest", b"older")))
    auth = Authenticator(lambda: intent, anonymous=False)
    found = auth.principal(b"Bearer " + KEY.encode(), 0.0)
    assert found is not None
    assert found.tenant_name == "acme"


def test_rel_s14_a_mistyped_key_of_ours_costs_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_hash(*_: object) -> bytes:
        raise AssertionError("hashed")

    monkeypatch.setattr("regional.gateway.auth.key_digest", no_hash)
    auth = Authenticator(intent_with, anonymous=False)
    good = make_key(b"y" * 20)
    assert auth.principal(b"Bearer " + (good[:-1] + ("0" if good[-1] != "0" else "1")).encode(), 0.0) is None


async def test_nobody_is_served_without_a_key_unless_standalone_without_tenants(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    engine = await upstream()
    empty = intent_with(tenant=None)
    assert (await (await start_gateway(to(engine), intent=empty)).ask(post(chat(), key=None))).status == 401
    open_to_all = await start_gateway(to(engine), intent=empty, anonymous=True)
    assert (await open_to_all.ask(post(chat(), key=None))).status == 200
    assert (await open_to_all.ask(post(chat(), key="anything-at-all"))).status == 200
    assert open_to_all.core.lives[0].facts.tenant_uid == ""
    open_to_all.intent = intent_with()  # a tenant appears
    assert (await open_to_all.ask(post(chat(), key=None))).status == 401


async def test_facts_say_what_the_tenant_may(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    tenant = Tenant(
        "t-1",
        "acme",
        "gold",
        models=("llama-*", "other"),
        regions=("eu-*",),
        gpu_classes=("h100-*",),
        residency=Residency(EU),
        policy="p",
    )
    keys = (key_of(KEY, models=("llama-3*", "third")),)
    intent = replace(
        intent_with(tenant=tenant, keys=keys), sla_classes={"gold": SlaClass("c", "gold", 700, 12.0, 34.0, spill=False)}
    )
    run = await start_gateway(to(await upstream()), intent=intent)
    await run.ask(post(chat(max_tokens=7), extra=b"x-headrace-priority: 900\r\n"))
    await run.ask(post(chat(), extra=b"x-headrace-priority: 5\r\nx-headrace-deadline-ms: 1500\r\n"))
    await run.ask(post(chat(), extra=b"x-headrace-priority: high\r\nx-headrace-deadline-ms: -4\r\n"))
    one, two, three = (life.facts for life in run.core.lives)
    assert one.allowed_models == ("llama-3*",)
    assert (one.allowed_regions, one.allowed_gpu_classes) == (("eu-*",), ("h100-*",))
    assert (one.policy, one.spill, one.sla_class) == ("p", False, "gold")
    assert (one.first_byte_deadline_seconds, one.total_seconds, one.deadline_seconds) == (12.0, 34.0, None)
    assert one.residency.allow == EU
    assert one.max_output_tokens == 7
    assert (one.priority, two.priority, three.priority) == (700, 5, 700)
    assert (two.deadline_seconds, three.deadline_seconds) == (1.5, None)
    assert one.entry_region == "here"


@pytest.mark.parametrize(
    ("first", "second", "common"),
    [
        (("*",), ("a", "b*"), ("a", "b*")),
        (("a", "b"), ("b", "c"), ("b",)),
        (("llama-*",), ("llama-3*", "*-x"), ("llama-3*",)),
        (("a*",), ("b*",), ()),
        ((), ("*",), ()),
    ],
)
def test_common_patterns(first: tuple[str, ...], second: tuple[str, ...], common: tuple[str, ...]) -> None:
    assert common_patterns(first, second) == common
    assert set(common_patterns(second, first)) == set(common)


# Residency

HERE = Region("r1", "here", Coordinates(38.9, -77.4), US, "https://us.example.com")
NEAR = Region("r2", "eu-west", Coordinates(53.3, -6.2), EU, "https://eu.example.com")
FAR = Region("r3", "eu-far", Coordinates(-33.8, 151.2), EU, "https://eu-far.example.com")


def resident(residency: Residency, key_residency: Residency | None = None) -> Intent:
    return intent_with(
        regions=(HERE, NEAR, FAR),
        tenant=Tenant("t-1", "acme", "standard", residency=residency),
        keys=(key_of(KEY, residency=key_residency),),
    )


@pytest.mark.parametrize(
    ("tenant", "key"), [(EU, None), (frozenset(), EU), (EU | US, EU), (EU, US), (EU, frozenset({"CH"}))]
)
async def test_case_z08_residency_is_judged_by_the_head(
    start_gateway: StartGateway, upstream: StartUpstream, tenant: frozenset[str], key: frozenset[str] | None
) -> None:
    engine = await upstream()
    intent = resident(Residency(tenant), None if key is None else Residency(key))
    run = await start_gateway(to(engine), intent=intent)
    client = await run.client()
    await client.send(post(b"x" * 1_000_000)[:1000])  # most of the body is never sent
    reply = await asyncio.wait_for(client.reply(), 5)
    assert (reply.status, reply.error["code"]) == (403, "region_not_allowed")
    assert reply.header("x-should-retry") == "false"
    nowhere = tenant and key and not tenant & key
    assert ("https://eu" in str(reply.error["message"])) is not bool(nowhere)
    assert engine.requests == []
    assert run.core.lives == []


async def test_the_nearest_allowed_region_is_named_and_redirected_to(start_gateway: StartGateway) -> None:
    run = await start_gateway(intent=resident(Residency(EU)))
    run.gateway.reception._locate = lambda address: Origin(address, coordinates=Coordinates(-30.0, 150.0))
    reply = await run.ask(post(chat()))
    assert "https://eu-far.example.com" in str(reply.error["message"])
    redirected = await run.ask(post(chat(), extra=b"x-headrace-redirect: allow\r\n"))
    assert redirected.status == 307
    assert redirected.header("location") == "https://eu-far.example.com/v1/chat/completions"


async def test_ingress_relay_lets_the_request_in(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    run = await start_gateway(to(await upstream()), intent=resident(Residency(EU, relay_ingress=True)))
    assert (await run.ask(post(chat()))).status == 200
    assert run.core.life.facts.residency == Residency(EU, relay_ingress=True)


async def test_a_region_of_unknown_jurisdiction_takes_no_bound_data(start_gateway: StartGateway) -> None:
    intent = replace(resident(Residency(EU)), regions={})
    assert (await (await start_gateway(intent=intent)).ask(post(chat()))).status == 403


# Sessions


async def test_case_n03_session_tokens(start_gateway: StartGateway, upstream: StartUpstream) -> None:
    run = await start_gateway(to(await upstream()))

    async def session(extra: bytes, **body: object) -> str:
        assert (await run.ask(post(chat(**body), extra=extra))).status == 200
        return run.core.lives[-1].facts.session

    good = await session(b"x-session-id: user-7/chat.3\r\n")
    assert len(good) == 64
    assert await session(b"X-Session-Id: user-7/chat.3\r\n") == good
    assert await session(b"x-session-id: user-8\r\n") not in ("", good)
    for bad in (
        b"x-session-id:\r\n",
        b"x-session-id: %%%\r\n",
        b"x-session-id: a\r\nx-session-id: b\r\n",
        b"x-session-id: \xff\r\n",
    ):
        assert await session(bad) == ""
    cached = await session(b"", prompt_cache_key="user-7/chat.3")
    assert cached not in ("", good)
    assert await session(b"x-session-id: user-7/chat.3\r\n", prompt_cache_key="other") == good
    assert await session(b"", prompt_cache_key=7) == ""
    oversize = await run.ask(post(chat(), extra=b"x-session-id: %b\r\n" % (b"a" * 10_000)))
    assert (oversize.status, oversize.error["param"]) == (400, "x-session-id")


async def test_case_n03_the_same_id_of_two_tenants_is_two_sessions(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    found = []
    for uid in ("t-1", "t-2"):
        run = await start_gateway(to(await upstream()), intent=intent_with(tenant=Tenant(uid, "acme", "standard")))
        await run.ask(post(chat(), extra=b"x-session-id: same\r\n"))
        found.append(run.core.life.facts.session)
    assert found[0] != found[1]


# Models


async def test_case_e07_models_are_those_the_key_may_use(start_gateway: StartGateway) -> None:
    models = {
        "llama-3": Model("m1", "llama-3", "chat", aliases=("meta-llama/Llama 3",)),
        "secret": Model("m2", "secret", "chat", aliases=("hidden",)),
    }
    routes = (
        Route("r1", "r1", "best", (Split("llama-3", 1.0),)),
        Route("r2", "r2", "theirs", (Split("llama-3", 1.0),), tenants=("others",)),
        Route("r3", "r3", "forbidden", (Split("secret", 1.0),)),
    )
    intent = intent_with(keys=(key_of(KEY, models=("llama-*",)),), models=models, routes=routes)
    run = await start_gateway(intent=intent)  # no engine at all is up
    auth = b"Authorization: Bearer %b\r\n" % KEY.encode()
    for _ in range(20):
        reply = await run.ask(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n" + auth + b"\r\n")
        assert reply.status == 200
    listed = json.loads(reply.body)
    assert listed["object"] == "list"
    assert [m["id"] for m in listed["data"]] == ["best", "llama-3", "meta-llama/Llama 3"]
    assert {m["object"] for m in listed["data"]} == {"model"}
    one = await run.ask(b"GET /v1/models/meta-llama/Llama%203 HTTP/1.1\r\nHost: a\r\n" + auth + b"\r\n")
    assert json.loads(one.body)["id"] == "meta-llama/Llama 3"
    for name in (b"secret", b"hidden", b"forbidden", b"theirs", b"nonsense"):
        missing = await run.ask(b"GET /v1/models/%b HTTP/1.1\r\nHost: a\r\n%b\r\n" % (name, auth))
        assert (missing.status, missing.error["code"]) == (404, "model_not_found")
    assert (await run.ask(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")).status == 401


async def test_refusals_are_counted_and_nothing_a_client_wrote_is_a_label(
    start_gateway: StartGateway, upstream: StartUpstream
) -> None:
    run = await start_gateway(to(await upstream()))
    await run.ask(post(chat(), key="sk-canary-key-123"))
    await run.ask(post(b"{"))
    await run.ask(post(chat(model="canary-model")))
    metrics: RouterMetrics = run.gateway.metrics
    from prometheus_client import generate_latest

    text = generate_latest(metrics.registry).decode()
    assert "canary" not in text
    assert 'outcome="client_error",region="here",tenant_class="none"} 1.0' in text
