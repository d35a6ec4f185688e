"""The gateway's own section of the router's settings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from regional.settings import RouterSettings


class Expose(StrEnum):
    """Which placement headers answers carry (``HEADRACE_EXPOSE``)."""

    NONE = "none"
    REGION = "region"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Limits and times of the relay. Sizes in bytes, times in seconds."""

    region: str = ""
    expose: Expose = Expose.REGION
    anonymous: bool = False
    """Serve anyone while the intent holds no tenants: standalone on loopback only."""
    trusted_proxies: tuple[str, ...] = ()
    """CIDRs whose forwarded headers are believed."""

    body_bytes: int = 32 * 1024 * 1024
    buffered_bytes: int = 1024 * 1024 * 1024
    """Request bodies held at once over all connections; above it new ones are refused with 503."""
    head_bytes: int = 64 * 1024
    """Request line and headers; also the most that may arrive without making progress in a message."""
    header_count: int = 200
    pipelined: int = 16
    """Requests of one connection that may wait behind the one being answered before it is no longer read."""
    connections: int = 10_000

    idle_seconds: float = 60.0
    """Longest silence inside an answer."""
    client_seconds: float = 30.0
    """Longest time for a request's head, for a body that comes slower than ``body_floor``, and for unread answers."""
    body_floor: int = 4096
    """Bytes per second a body must come at once ``client_seconds`` have passed."""
    keepalive_seconds: float = 75.0
    """Longest idle time of a client's connection between requests."""
    upstream_idle_seconds: float = 4.0
    """Idle upstream connections are closed after this: before the 5 s that uvicorn-based engines allow."""
    upstream_idle_connections: int = 512
    """Idle connections kept per endpoint."""

    shutdown_delay_seconds: float = 0.0
    shutdown_grace_seconds: float = 30.0

    @classmethod
    def of(cls, router: RouterSettings, *, anonymous: bool = False) -> GatewaySettings:
        """The gateway's share of a router's settings."""
        return cls(
            region=router.region,
            expose=Expose(router.expose_level),
            anonymous=anonymous,
            trusted_proxies=tuple(router.trusted_proxies),
            body_bytes=router.limits_body_bytes,
            connections=router.limits_streams,
            idle_seconds=router.timeout_idle_seconds,
            client_seconds=router.timeout_client_seconds,
            shutdown_delay_seconds=router.shutdown_delay_seconds,
            shutdown_grace_seconds=router.shutdown_grace_seconds,
        )
