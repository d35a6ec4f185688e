"""What a node may say of itself: addresses inside its zone, numbers that can be true (rel-S8, rel-S13)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from urllib.parse import urlsplit

from fleet.endpoint import EndpointReport, EngineLoad

MAX_INFLIGHT = 100_000
MAX_KV_TOKENS = 10**9
MAX_CONTEXT_TOKENS = 10**8
MAX_REQUESTS = 1_000_000
MAX_TENSOR_PARALLEL = 1024
MAX_AGE_SECONDS = 1e9

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def address_of(text: str) -> _Address | None:
    """An address in one spelling: IPv4-mapped IPv6 becomes IPv4. None for names and for odd spellings of numbers."""
    try:
        address = ipaddress.ip_address(text.strip("[]").split("%", 1)[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


@lru_cache(maxsize=1024)
def _networks(ranges: tuple[str, ...]) -> tuple[_Network, ...]:
    return tuple(ipaddress.ip_network(r, strict=False) for r in ranges)


def within(address: _Address, ranges: tuple[str, ...]) -> bool:
    return any(address.version == n.version and address in n for n in _networks(ranges))


def url_problem(url: str, ranges: tuple[str, ...], own_addresses: Iterable[str], *, declared: bool) -> str:
    """Why an endpoint may not lie at ``url``; empty when it may.

    A zone with ranges binds everybody. Without ranges a fleet file may name any place, and an agent only the node's own
    addresses; link-local and unspecified addresses (metadata services live there) are nobody's own.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.password:
        return "is not a plain http or https address"
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        return "must have no path"
    address = address_of(host)
    if ranges:
        if address is not None:
            return (
                "" if within(address, ranges) else "lies outside the zone's endpoint_ranges; add its range to the zone"
            )
        # A name cannot be checked here; whoever connects resolves it once and checks what it got.
        return "" if declared or host in own_addresses else "is a name that is not the node's own"
    if declared:
        return ""
    own = list(own_addresses)
    if address is None:
        return "" if host in own else "is a name that is not the node's own"
    if address.is_link_local or address.is_unspecified or address.is_multicast:
        return "is an address that no node can own"
    mine = any(address_of(a) == address for a in own)
    return (
        ""
        if mine
        else "is not one of the node's own addresses; advertise one of those, or give the zone endpoint_ranges"
    )


def _count(value: int | None, high: int) -> int | None:
    return None if value is None or value < 0 else min(value, high)


def _plausible(value: int | None, high: int) -> bool:
    return value is None or 0 <= value <= high


def bounded_load(load: EngineLoad) -> EngineLoad:
    """A load with numbers that can be true; what cannot be is unknown. Not-a-number was refused at the border."""
    usage, age = load.kv_usage, load.sample_age_seconds
    usage_ok = usage is None or 0.0 <= usage <= 1.0
    age_ok = age is None or 0.0 <= age <= MAX_AGE_SECONDS
    if usage_ok and age_ok and _plausible(load.running, MAX_REQUESTS) and _plausible(load.waiting, MAX_REQUESTS):
        return load
    return replace(
        load,
        running=_count(load.running, MAX_REQUESTS),
        waiting=_count(load.waiting, MAX_REQUESTS),
        kv_usage=usage if usage_ok else None,
        sample_age_seconds=age if age_ok else None,
    )


def bounded(report: EndpointReport) -> EndpointReport:
    """The report with sizes that can be true; the very one it was given when they all are."""
    load = bounded_load(report.load)
    sizes_ok = (
        _plausible(report.max_inflight, MAX_INFLIGHT)
        and _plausible(report.kv_tokens, MAX_KV_TOKENS)
        and _plausible(report.context_tokens, MAX_CONTEXT_TOKENS)
        and 1 <= report.tensor_parallel <= MAX_TENSOR_PARALLEL
    )
    if load is report.load and sizes_ok:
        return report
    return replace(
        report,
        load=load,
        tensor_parallel=min(max(1, report.tensor_parallel), MAX_TENSOR_PARALLEL),
        max_inflight=_count(report.max_inflight, MAX_INFLIGHT),
        kv_tokens=_count(report.kv_tokens, MAX_KV_TOKENS),
        context_tokens=_count(report.context_tokens, MAX_CONTEXT_TOKENS),
    )
