"""Where a name may lead: it is resolved once, what it gave is checked, and that very address is dialled (rel-S8)."""

from __future__ import annotations

import asyncio
import socket

from regional.fleetview.bounds import address_of, within


async def places_of(host: str, port: int, ranges: tuple[str, ...]) -> list[str]:
    """What to dial for ``host``: itself where nothing limits it or it is an address (which was checked when it was named),
    else its addresses inside ``ranges``. Raises OSError when there is none."""
    if not ranges or address_of(host) is not None:
        return [host]
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    found = dict.fromkeys(str(info[4][0]) for info in infos)
    inside = [text for text in found if (address := address_of(text)) is not None and within(address, ranges)]
    if not inside:
        raise OSError("the name leads outside the zone's endpoint_ranges")
    return inside
