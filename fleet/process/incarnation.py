"""The state directory of a process, and the incarnation number kept in it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fleet.errors import FieldError, InvalidInput

_FILE = "incarnation"
_LARGEST = (1 << 63) - 1


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace ``path`` so that a reader, or a crash at any moment, sees the old content or the new, whole and on disk."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextmanager
def hold_state_directory(path: Path) -> Iterator[Path]:
    """Create ``path`` (0700) and hold it for this process alone until the block ends.

    Raises InvalidInput when it cannot be made, is not writable, or another process holds it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidInput([FieldError("state_dir", f"{path}: {error.strerror}")]) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            reason = f"{path} is in use by another process; give each its own directory"
            raise InvalidInput([FieldError("state_dir", reason)]) from error
        yield path
    finally:
        os.close(lock)


def next_incarnation(state_dir: Path, *, wall_seconds: float) -> int:
    """A number greater than any this directory gave before, on disk before it is returned.

    It is at least the wall clock in seconds, so that a process whose directory was lost or damaged still comes out newer
    than its former self; a clock that went back cannot lower it.
    """
    path = state_dir / _FILE
    try:
        previous = int(path.read_text("ascii"))
    except (FileNotFoundError, ValueError):
        previous = 0
    if not 0 <= previous < _LARGEST:
        previous = 0
    incarnation = max(previous + 1, int(wall_seconds))
    write_atomically(path, b"%d\n" % incarnation)
    return incarnation
