"""Snapshots go out: full, deltas, heartbeats, on both databases."""

from __future__ import annotations

from pathlib import Path

from fleet.snapshot import SECRETS_KIND, IntentVersion
from tests.controlplane_feed.copies import Router, Store, copy, obj


async def test_a_watch_gets_the_whole_then_a_delta_for_each_change(
    store: Store, database_url: str, tmp_path: Path
) -> None:
    token = await store.router_token("eu-west")
    async with copy(database_url, tmp_path) as plane:
        router = Router(plane.channel(), token, "eu-west")
        first = await router.until_version(IntentVersion(0, 1))
        assert {o.name for o in first.objects.values() if o.kind == "node"} == {"eu-1"}
        assert first.objects["region", "r-us"].name == "us-east"
        assert "endpoint_ranges" not in first.objects["zone", "z-us-a"].spec
        assert first.objects["zone", "z-eu-a"].spec["endpoint_ranges"] == ["10.2.0.0/16"]
        [secrets] = [o for o in first.objects.values() if o.kind == SECRETS_KIND]
        assert len(secrets.secrets["peppers"]) == 1

        at = await store.write([obj("node", "n-2", "eu-2", zone="eu-west-a")])
        second = await router.until_version(at)
        assert second.objects["node", "n-2"].name == "eu-2"
        at = await store.write(removals=[("node", "n-2")])
        third = await router.until_version(at)
        assert third.objects == first.objects
        assert third.content == first.content
        assert (router.fulls, router.deltas) == (1, 2)
        await router.until(lambda r: bool(r.heads) and r.heads[-1] == third.at)
        await router.close()
