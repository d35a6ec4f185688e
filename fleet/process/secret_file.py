"""A secret kept in a file, as Docker, Kubernetes and systemd hand them out."""

from __future__ import annotations

import os
from pathlib import Path

from fleet.errors import FieldError, InvalidInput

_LIMIT_BYTES = 64 * 1024


class SecretFile:
    """Content of ``path`` without surrounding white space, read again when the file is replaced or rewritten.

    Raises InvalidInput when it cannot be read at first; later failures leave the last good value in force.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._stamp()
        self._value = self._read()

    def value(self) -> str:
        """The present secret."""
        try:
            stamp = self._stamp()
            if stamp != self._seen:
                self._value = self._read()
                self._seen = stamp
        except InvalidInput:
            pass  # being replaced, or gone: what was good stays in force until there is something better
        return self._value

    def __repr__(self) -> str:
        return f"SecretFile({str(self._path)!r})"

    def _stamp(self) -> tuple[int, int, int]:
        try:
            stat = os.stat(self._path)
        except OSError as error:
            raise InvalidInput([FieldError("", f"{self._path}: {error.strerror}")]) from None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def _read(self) -> str:
        try:
            with self._path.open("rb") as file:
                data = file.read(_LIMIT_BYTES + 1)
            text = data.decode("utf-8").strip()
        except OSError as error:
            raise InvalidInput([FieldError("", f"{self._path}: {error.strerror}")]) from None
        except UnicodeDecodeError:
            raise InvalidInput([FieldError("", f"{self._path}: is not UTF-8 text")]) from None
        if not text:
            raise InvalidInput([FieldError("", f"{self._path}: is empty")])
        if len(data) > _LIMIT_BYTES:
            raise InvalidInput([FieldError("", f"{self._path}: is larger than {_LIMIT_BYTES} bytes")])
        return text
