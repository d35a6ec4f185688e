"""Where a client is: the geo database with a cache, renewed when its file changes."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fleet.geo.addresses import Address, is_private, parse_address
from fleet.geo.database import Database, DatabaseError
from fleet.geo.records import NOWHERE, Place, place_of
from fleet.locality import Origin

_Stamp = tuple[tuple[int, int, int], ...]
_RECENT_ENTRIES = 4096
_CACHE_PREFIX = {4: 24, 6: 48}
PRIVATE = Place(source="private")


@dataclass(slots=True)
class _Loaded:
    """A database and what has been asked of it. Replaced whole, so that no answer outlives its database."""

    database: Database | None = None
    places: OrderedDict[tuple[int, int], Place] = field(default_factory=OrderedDict)
    origins: dict[str, Origin] = field(default_factory=dict)


class OriginResolver:
    """Resolves addresses to origins; used from one event loop.

    ``path`` is a file, several separated by commas (IPv4 and IPv6 apart), or None for no database: then every address is
    unknown, or private, and the caller falls back to its own region. Files are looked at every ``check_seconds`` as lookups
    come in, and loaded in a thread of their own; a file that fails its self-test leaves the old one in force and is told to
    ``on_event(message, ok)``. A database that is missing or damaged at the start means serving without geo until it is good.
    """

    def __init__(
        self,
        path: Path | str | Sequence[Path] | None = None,
        *,
        check_seconds: float = 5.0,
        cache_entries: int = 65_536,
        on_event: Callable[[str, bool], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = _paths(path)
        self._check_seconds = check_seconds
        self._cache_entries = cache_entries
        self._on_event = on_event or (lambda _message, _ok: None)
        self._monotonic = monotonic
        self._loaded = _Loaded()
        self._stamp: _Stamp = ()
        self._loading = threading.Lock()
        self._next_check = monotonic() + check_seconds
        self.error = ""
        """Why the file on disk is not in force; empty when it is, or when none is configured."""
        if self._paths:
            self.refresh()

    @property
    def available(self) -> bool:
        """True when there is a database to ask."""
        return self._loaded.database is not None

    def locate(self, address: str) -> Origin:
        """The origin of a client address in any spelling. Never raises; what is not known is not guessed."""
        if self._paths and self._monotonic() >= self._next_check:
            self._next_check = self._monotonic() + self._check_seconds
            self._check_in_background()
        loaded = self._loaded
        recent = loaded.origins.get(address)
        if recent is not None:
            return recent
        parsed = parse_address(address)
        if parsed is None:
            return Origin(address=address[:80])
        place = self._place(loaded, parsed)
        origin = Origin(str(parsed), place.country, place.continent, place.coordinates, place.source)
        if len(loaded.origins) >= _RECENT_ENTRIES:
            loaded.origins.clear()
        loaded.origins[address] = origin
        return origin

    def refresh(self) -> bool:
        """Load the files now if they have changed; True when new ones are in force. Blocks; not for the event loop."""
        with self._loading:
            stamp = _stamps(self._paths)
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            try:
                database = Database(self._paths)
            except DatabaseError as error:
                self.error = str(error)
                kept = "the previous one stays in use" if self.available else "serving without geo"
                self._on_event(f"geo database refused, {kept}: {error}", False)
                return False
            # Readers of the old one may be in the middle of a lookup; it is freed with its last reference.
            self._loaded, self.error = _Loaded(database), ""
            self._on_event("geo database loaded: " + ", ".join(map(str, self._paths)), True)
            return True

    def close(self) -> None:
        """Forget the database."""
        self._paths = ()
        self._loaded = _Loaded()

    def _check_in_background(self) -> None:
        if _stamps(self._paths) != self._stamp and not self._loading.locked():
            threading.Thread(target=self.refresh, name="geo-reload", daemon=True).start()

    def _place(self, loaded: _Loaded, address: Address) -> Place:
        number = int(address)
        shift = address.max_prefixlen - _CACHE_PREFIX[address.version]
        wide, narrow = (address.version, number >> shift), (-address.version, number)
        for key in (wide, narrow):
            place = loaded.places.get(key)
            if place is not None:
                loaded.places.move_to_end(key)
                return place
        place, prefix = self._look_up(loaded.database, address)
        # An answer that holds for the whole block is cached once for it, so that a scan of addresses does not fill the cache.
        loaded.places[wide if prefix <= _CACHE_PREFIX[address.version] else narrow] = place
        if len(loaded.places) > self._cache_entries:
            loaded.places.popitem(last=False)
        return place

    def _look_up(self, database: Database | None, address: Address) -> tuple[Place, int]:
        record = None
        prefix: int = address.max_prefixlen
        if database is not None:
            try:
                record, prefix = database.find(address)
            except DatabaseError as error:
                if not self.error:
                    self.error = str(error)
                    self._on_event(str(error), False)
        place = place_of(record)
        if place is NOWHERE and is_private(address):
            return PRIVATE, address.max_prefixlen
        return place, prefix


def _paths(path: Path | str | Sequence[Path] | None) -> tuple[Path, ...]:
    if path is None:
        return ()
    if isinstance(path, Path):
        return (path,)
    if isinstance(path, str):
        return tuple(Path(part.strip()) for part in path.split(",") if part.strip())
    return tuple(path)


def _stamps(paths: Sequence[Path]) -> _Stamp:
    stamps = []
    for path in paths:
        try:
            stat = path.stat()
            stamps.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
        except OSError:
            stamps.append((0, 0, -1))
    return tuple(stamps)
