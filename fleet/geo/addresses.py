"""IP addresses in every spelling that clients and proxies use, brought to one form."""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv6Address

Address = IPv4Address | IPv6Address

_LONGEST = 80
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_CARRIER_NAT = ipaddress.ip_network("100.64.0.0/10")


def parse_address(text: str) -> Address | None:
    """The address written in ``text``, or None.

    Brackets, a port after them (or after an IPv4 address) and a zone id are dropped. An IPv4 address inside IPv6, mapped or
    by NAT64, comes out as IPv4 however it is spelled (case-Z01): otherwise one client would have two identities.
    """
    text = text.strip()
    if not text or len(text) > _LONGEST:
        return None
    if text.startswith("["):
        inner, bracket, after = text[1:].partition("]")
        if not bracket or (after and not _is_port(after)):
            return None
        text = inner
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
        if not _is_port(f":{port}"):
            return None
        text = host
    text, percent, zone = text.partition("%")
    if percent and not zone:
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return plain(address)


def plain(address: Address) -> Address:
    """IPv4 out of IPv6 where that is what it is."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_private(address: Address) -> bool:
    """True for addresses that mean something else on every network: private, loopback, link-local, carrier NAT."""
    if isinstance(address, IPv4Address) and address in _CARRIER_NAT:
        return True
    return address.is_private or address.is_loopback or address.is_link_local


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isascii() and text[1:].isdigit() and len(text) <= 6
