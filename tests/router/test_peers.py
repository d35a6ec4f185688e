"""What a peer region's router says when probed is taken for what it can mean, and no more."""

from __future__ import annotations

import asyncio
import random
import ssl

from aiohttp import web

from fleet.clock import SystemClock
from fleet.intent import Intent, Secrets
from fleet.locality import Region
from regional.fleetview.peers import PeerProbe
from regional.sync.peers import Peers


async def _probed(answer: object) -> PeerProbe:
    """What comes of probing a router that answers so."""

    async def answered(_request: web.Request) -> web.Response:
        return web.json_response(answer)

    app = web.Application()
    app.router.add_get("/_headrace/peer", answered)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    regions = {"eu": Region("r-1", "eu"), "us": Region("r-2", "us", public_url=url)}
    intent = Intent(region="eu", regions=regions, secrets=Secrets((), (b"a key for hops",)))
    found: asyncio.Future[PeerProbe] = asyncio.get_running_loop().create_future()
    peers = Peers(
        lambda: intent,
        lambda _region, probe: None if found.done() else found.set_result(probe),
        SystemClock(),
        random.Random(1),
        ssl.create_default_context,
    )
    running = asyncio.ensure_future(peers.run())
    try:
        return await asyncio.wait_for(found, 10)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await runner.cleanup()


async def test_case_s13_numbers_of_a_peer_that_cannot_be_true_are_unknown() -> None:
    """A negative wait would draw every request of the fleet there."""
    row = ["us-a", "m", 1, 1, -5.0, -1.0, -3, -2, -1000.0, -7]
    probe = await _probed({"region": "us", "router": "r", "ready": True, "rows": [row]})
    assert probe.ok
    (seen,) = probe.rows or ()
    assert (seen.prefill_tokens_per_second, seen.decode_tokens_per_second, seen.waiting) == (None, None, None)
    assert (seen.expected_wait_seconds, seen.kv_free_tokens, seen.inflight) == (None, None, 0)


async def test_a_router_of_another_region_at_that_address_is_no_answer() -> None:
    probe = await _probed({"region": "elsewhere", "router": "r", "ready": True, "rows": []})
    assert not probe.ok
