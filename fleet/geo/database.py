"""Opening MaxMind-format files without trusting them: a damaged one must not take the process down (case-Z06)."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import maxminddb

from fleet.errors import HeadraceError
from fleet.geo.addresses import Address

_SELF_TEST_NETWORKS = 2000
_SELF_TEST_LOOKUPS = 512
_LIMIT_BYTES = 4 << 30
_COPY_BYTES = 1 << 20


class DatabaseError(HeadraceError):
    """A file is no usable database; the text names it and says why."""


class Database:
    """One or several files that answer as one: the first record found counts (makers ship IPv4 and IPv6 apart)."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Open and test all files. Raises DatabaseError; nothing stays open then."""
        self._stack = contextlib.ExitStack()
        self._readers: list[maxminddb.Reader] = []
        try:
            for path in paths:
                reader = _open(path)
                self._stack.callback(reader.close)
                self._readers.append(reader)
        except DatabaseError:
            self._stack.close()
            raise

    def find(self, address: Address) -> tuple[Any, int]:
        """(record or None, length of the prefix for which that is the answer). Raises DatabaseError for damage met only now."""
        longest = 0
        for reader in self._readers:
            if address.version == 6 and reader.metadata().ip_version == 4:
                continue
            try:
                record, prefix = reader.get_with_prefix_len(address)
            except (maxminddb.InvalidDatabaseError, ValueError, UnicodeDecodeError) as error:
                raise DatabaseError(f"the geo database is damaged: {error}") from None
            if address.version == 4 and prefix > 32:
                prefix -= 96  # counted in the IPv6 tree
            longest = max(longest, prefix)
            if record is not None:
                return record, longest
        return None, longest or address.max_prefixlen

    def close(self) -> None:
        self._stack.close()


def _open(path: Path) -> maxminddb.Reader:
    """A reader on a private copy in memory.

    The native reader maps the file; a writer that truncates a mapped file in place would kill the process with a bus error,
    so the mapping is of an anonymous file that nobody else can reach.
    """
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise DatabaseError(f"{path} is not a file")
        if size == 0:
            raise DatabaseError(f"{path} is empty")
        if size > _LIMIT_BYTES:
            raise DatabaseError(f"{path} is larger than {_LIMIT_BYTES >> 30} GiB")
        with _private_copy(path) as copy:
            reader = maxminddb.open_database(copy, maxminddb.MODE_AUTO)
    except OSError as error:
        raise DatabaseError(f"{path}: {error.strerror or error}") from None
    except (maxminddb.InvalidDatabaseError, ValueError, UnicodeDecodeError) as error:
        raise DatabaseError(f"{path} is not a MaxMind-format database: {_first_line(error)}") from None
    try:
        _self_test(reader)
    except (maxminddb.InvalidDatabaseError, ValueError, UnicodeDecodeError, RecursionError, MemoryError) as error:
        reader.close()
        raise DatabaseError(f"{path} is damaged: {_first_line(error)}") from None
    return reader


@contextlib.contextmanager
def _private_copy(path: Path) -> Iterator[str]:
    if not hasattr(os, "memfd_create"):
        yield str(path)
        return
    handle = os.memfd_create("headrace-geo", os.MFD_CLOEXEC)
    try:
        with path.open("rb") as source, os.fdopen(os.dup(handle), "wb") as copy:
            while block := source.read(_COPY_BYTES):
                copy.write(block)
        yield f"/proc/self/fd/{handle}"  # mapped while open here; the mapping outlives the descriptor
    finally:
        os.close(handle)


def _self_test(reader: maxminddb.Reader) -> None:
    """Walk part of the tree and look addresses up all over it. Raises what the reader raises, ValueError for an empty tree."""
    walked = 0
    for network, record in itertools.islice(reader, _SELF_TEST_NETWORKS):
        walked += 1
        if not isinstance(record, dict):
            raise ValueError(f"the record of {network} is not a map")
    if walked == 0:
        raise ValueError("it holds no networks")
    step = (1 << 32) // _SELF_TEST_LOOKUPS
    for index in range(_SELF_TEST_LOOKUPS):
        reader.get(ipaddress.IPv4Address(index * step + step // 2))
        if reader.metadata().ip_version == 6:
            reader.get(ipaddress.IPv6Address((0x2000 << 112) + (index << 116) + (index << 64)))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
