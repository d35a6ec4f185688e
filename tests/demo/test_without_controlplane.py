"""The control plane is dead for the whole run: requests flow, routers restart, a node that dies is out and comes back."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from headrace.demo.layout import layout, ports_needed
from headrace.demo.network import places_of_node
from headrace.demo.ports import free_block
from headrace.demo.stage import Stage
from headrace.demo.traffic import Traffic, shares, window

NODE_OUT_SECONDS = 2.0
LATE = 2.0
"""How much longer a machine that runs other tests may take."""


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_static_stability(tmp_path: Path) -> None:
    plan = layout(2, itertools.count(free_block(ports_needed(2))))
    loop = asyncio.get_running_loop()
    async with Stage(plan, tmp_path) as stage:
        await stage.start()
        traffic = Traffic(plan, stage.credentials.tenant_key, rate=40.0)
        stop = asyncio.Event()
        sending = asyncio.ensure_future(traffic.run(stop))
        await stage.controlplane.kill()
        began = loop.time()
        await asyncio.sleep(1.0)

        # Each router restarts from its own disk, one after the other; clients go to the other region meanwhile.
        for region in plan.regions:
            await stage.routers[region.name].kill()
            await stage.routers[region.name].start()
            await stage.until_in_rotation(region.nodes)
        restarted = loop.time()
        await asyncio.sleep(3.0)

        # A node dies.
        home = plan.regions[0]
        by_node = shares(window(traffic.done, restarted, loop.time(), lambda s: s.city == home.city), "node")
        busiest = max((n for n in home.nodes if n.name in by_node), key=lambda n: by_node[n.name])
        died = loop.time()
        await stage.nodes[busiest.name].kill()
        await asyncio.sleep(4.0)
        last = stage.network.last_request(places_of_node(busiest), died)
        assert (last or died) - died <= LATE * NODE_OUT_SECONDS

        # And comes back: its identity is its own, nobody has to be asked.
        await stage.nodes[busiest.name].start()
        await stage.until_in_rotation([busiest])
        assert not stage.controlplane.running
        stop.set()
        await sending
        served = window(traffic.done, began, loop.time())
        failed = [s.detail for s in served if s.outcome == "failed"]
        assert len(served) > 200
        assert failed == []
        at_home = shares(window(served, restarted + 1.0, died, lambda s: s.city == home.city), "region")
        assert at_home.get(home.name, 0.0) > 0.9
