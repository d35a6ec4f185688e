"""``GET /capacity``, ``/snapshot``, ``/signing-keys`` and ``POST /locate``. All are answered from memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from controlplane.api.auth import Role, access
from controlplane.api.fleet import schemas
from controlplane.api.problems import Problem, responses
from controlplane.registry.ranking import rank
from controlplane.registry.reports import Held, merged_rows, summed_demand
from fleet.geo.client_address import TrustedProxies, client_address
from fleet.geo.regions import rtt_between
from fleet.locality import Origin, Region
from fleet.resources.kinds import KINDS
from fleet.resources.translate import intent_of
from fleet.snapshot import SECRETS_KIND, IntentObject, IntentSnapshot, IntentVersion


@dataclass(frozen=True, slots=True)
class FleetSources:
    """Where the answers come from; each is quick. ``snapshot`` and ``objects`` raise Unavailable before intent is read."""

    live: Callable[[], Mapping[str, Sequence[Held]]]
    """Reports that count, by region, freshest first."""
    objects: Callable[[], Mapping[tuple[str, str], IntentObject]]
    snapshot: Callable[[str], IntentSnapshot]
    signing_keys: Callable[[], dict[str, list[dict[str, str]]]]
    locate: Callable[[str], Origin]
    trusted: TrustedProxies
    monotonic: Callable[[], float]


def fleet_router(sources: FleetSources) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/api/v1", tags=["fleet"])

    @router.get("/capacity", responses=responses(), operation_id="get_capacity")
    @access(Role.VIEWER)
    async def capacity(region: Annotated[str | None, Query(max_length=253)] = None) -> schemas.Capacity:
        """What each region can do and is asked to do, by its routers' latest reports."""
        live = sources.live()
        names = sorted({*(r.name for r in _regions(sources)), *live})
        shown = [n for n in names if region is None or n == region]
        return schemas.Capacity(
            items=[
                schemas.CapacityItem(region=n, **asdict(row))
                for n in shown
                for row in merged_rows([h.report for h in live.get(n, ())])
            ],
            demand=[
                schemas.DemandItem(region=n, **asdict(row))
                for n in shown
                for row in summed_demand(h.report for h in live.get(n, ()))
            ],
            regions=[_region_item(n, live.get(n, ()), sources.monotonic()) for n in shown],
        )

    @router.get("/snapshot", responses=responses(404), operation_id="get_snapshot")
    @access(Role.VIEWER)
    async def snapshot(
        region: Annotated[str, Query(max_length=253)], kind: Annotated[str | None, Query(max_length=64)] = None
    ) -> schemas.Snapshot:
        """What the routers of ``region`` are told, at its present version. Holds no secret."""
        if region not in {r.name for r in _regions(sources)}:
            raise Problem("not-found", f"there is no region {region}")
        held = sources.snapshot(region)
        return schemas.Snapshot(
            at=schemas.SnapshotAt(epoch=held.at.epoch, version=held.at.version),
            region=region,
            objects=[_shown(o) for o in held.objects.values() if o.kind != SECRETS_KIND and kind in (None, o.kind)],
        )

    @router.get("/signing-keys", responses=responses(), operation_id="get_signing_keys")
    @access(Role.VIEWER, Role.ROUTER)
    async def signing_keys() -> schemas.SigningKeys:
        """Public keys that verify node identities."""
        return schemas.SigningKeys(**sources.signing_keys())

    @router.post("/locate", responses=responses(), operation_id="locate")
    @access(Role.VIEWER)
    async def locate(request: Request, body: schemas.LocateRequest) -> schemas.Located:
        """Where a client with this address is, and how far the regions are from it."""
        origin = sources.locate(body.address or _caller(request, sources.trusted))
        live = sources.live()
        return schemas.Located(
            origin=schemas.LocatedOrigin(
                address=origin.address,
                country=origin.country,
                continent=origin.continent,
                latitude=origin.coordinates.latitude if origin.coordinates else None,
                longitude=origin.coordinates.longitude if origin.coordinates else None,
                source=origin.source,
            ),
            regions=[
                schemas.LocatedRegion(
                    name=r.region.name,
                    expected_ms=None if r.expected_seconds is None else round(r.expected_seconds * 1000, 1),
                    public_url=r.region.public_url,
                    connected=bool(live.get(r.region.name)),
                    routers_ready=sum(h.report.ready for h in live.get(r.region.name, ())),
                )
                for r in rank(origin, _regions(sources), rtt_between)
            ],
        )

    return router


def _regions(sources: FleetSources) -> list[Region]:
    written = [o for o in sources.objects().values() if o.kind == "region"]
    intent, _ = intent_of(IntentVersion(), "", written)
    return list(intent.regions.values())


def _region_item(name: str, held: Sequence[Held], now: float) -> schemas.RegionItem:
    return schemas.RegionItem(
        name=name,
        connected=bool(held),
        routers=[
            schemas.RouterItem(
                uid=h.report.router_uid,
                ready=h.report.ready,
                http_addresses=list(h.report.http_addresses),
                grpc_addresses=list(h.report.grpc_addresses),
                applied_epoch=h.report.applied_epoch,
                applied_version=h.report.applied_version,
                report_age_seconds=round(h.age_seconds(now), 3),
                rejections=list(h.report.rejections),
                peer_rtt_seconds=dict(h.report.peer_rtt_seconds),
                version=h.report.version,
            )
            for h in sorted(held, key=lambda h: h.report.router_uid)
        ],
    )


def _shown(obj: IntentObject) -> schemas.SnapshotObject:
    """Without ``secrets``, and without any field that its kind calls a secret, should one ever stand in a spec."""
    secret = KINDS[obj.kind].spec.secret_fields if obj.kind in KINDS else frozenset[str]()
    spec: dict[str, Any] = {k: v for k, v in obj.spec.items() if k not in secret}
    return schemas.SnapshotObject(
        kind=obj.kind, uid=obj.uid, name=obj.name, generation=obj.generation, labels=dict(obj.labels), spec=spec
    )


def _caller(request: Request, trusted: TrustedProxies) -> str:
    peer = request.client.host if request.client else ""
    headers = request.headers
    return client_address(peer, headers.getlist("x-forwarded-for"), headers.getlist("forwarded"), trusted)
