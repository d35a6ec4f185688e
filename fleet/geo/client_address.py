"""Whose request it is when proxies stand between: forwarded headers count only from proxies we trust (case-H08)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

from fleet.errors import FieldError, InvalidInput
from fleet.geo.addresses import Address, parse_address

_ENTRY_LIMIT = 64
_BYTES_LIMIT = 16 * 1024
_PAIR = re.compile(r'\s*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)=("(?:[^"\\]|\\.)*"|[^\s",;]+)\s*')


class TrustedProxies:
    """Networks whose proxies may say who the client is. Empty trusts nobody."""

    def __init__(self, cidrs: Iterable[str] = ()) -> None:
        """Raises InvalidInput that names each entry which is not a CIDR or an address."""
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        errors = []
        for cidr in cidrs:
            try:
                self._networks.append(ipaddress.ip_network(cidr.strip(), strict=False))
            except ValueError:
                errors.append(FieldError("trusted_proxies", f"{cidr!r} is not a CIDR such as 10.0.0.0/8"))
        if errors:
            raise InvalidInput(errors)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def trusts(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self._networks)


def client_address(peer: str, forwarded_for: Sequence[str], forwarded: Sequence[str], trusted: TrustedProxies) -> str:
    """The client's address in its one form; ``peer`` as it is when that is no IP address (a Unix socket).

    ``forwarded_for`` and ``forwarded`` are the values of ``X-Forwarded-For`` and ``Forwarded`` (RFC 7239), one per header
    line; several lines mean the same as one joined by commas. From the right, entries written by trusted proxies are passed
    over; the first that is not one of them is the client. An entry that is no address ends the walk at the peer, and so do
    two headers that disagree: a client can send the one that its proxy does not rewrite.
    """
    near = parse_address(peer)
    if near is None:
        return peer
    if not trusted or not (forwarded_for or forwarded) or not trusted.trusts(near):
        return str(near)
    answers = []
    if forwarded_for:
        answers.append(_walk(near, _split(forwarded_for), trusted))
    if forwarded:
        answers.append(_walk(near, _forwarded(forwarded), trusted))
    return str(answers[0] if all(answer == answers[0] for answer in answers) else near)


def _walk(peer: Address, entries: list[str], trusted: TrustedProxies) -> Address:
    client = peer
    for entry in reversed(entries[-_ENTRY_LIMIT:]):
        address = parse_address(entry)
        if address is None:
            return peer
        client = address
        if not trusted.trusts(address):
            return client
    return client  # everybody on the way is trusted, so the first one began it


def _split(lines: Sequence[str]) -> list[str]:
    return [entry.strip() for entry in _joined(lines).split(",") if entry.strip()]


def _forwarded(lines: Sequence[str]) -> list[str]:
    """The ``for`` of each element of ``Forwarded``; an element without one counts as an entry that is no address."""
    entries: list[str] = []
    text = _joined(lines)
    position = 0
    node: str | None = None
    written = False
    while position <= len(text):
        end = text[position : position + 1]
        if end in {",", ""}:
            if written or node is not None:
                entries.append(node or "unknown")
            node, written = None, False
            position += 1
        elif end == ";" or end.isspace():
            position += 1
        else:
            found = _PAIR.match(text, position)
            if found is None:
                return ["unknown"]  # broken: nothing in it can be told apart from what a client made up
            written = True
            if found[1].lower() == "for":
                value = found[2]
                node = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
            position = found.end()
    return entries


def _joined(lines: Sequence[str]) -> str:
    """The header's lines as one; of an over-long header the right end, which is what trusted proxies wrote."""
    return ",".join(lines)[-_BYTES_LIMIT:]
