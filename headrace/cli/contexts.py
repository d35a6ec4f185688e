"""Named control planes in ``~/.config/headrace/config.toml``: address, token, CA. The file is readable by its owner only."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.process.incarnation import write_atomically
from headrace.cli.errors import CliError

DEFAULT_SERVER = "http://127.0.0.1:7610"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a command goes, and as whom."""

    server: str
    token: str = field(default="", repr=False)
    ca: str = ""


@dataclass(slots=True)
class Contexts:
    path: Path
    current: str = ""
    targets: dict[str, Target] = field(default_factory=dict)

    def save(self) -> None:
        """Write the file, whole or not at all, with mode 0600."""
        lines = [f"current = {json.dumps(self.current)}", ""]
        for name, target in sorted(self.targets.items()):
            lines += [f"[contexts.{json.dumps(name)}]", f"server = {json.dumps(target.server)}"]
            if target.token:
                lines.append(f"token = {json.dumps(target.token)}")
            if target.ca:
                lines.append(f"ca = {json.dumps(target.ca)}")
            lines.append("")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self.path, "\n".join(lines).encode())
        except OSError as error:
            raise CliError(f"{self.path}: {error.strerror}") from None


def config_path(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".config")
    return Path(base) / "headrace" / "config.toml"


def read_contexts(environ: Mapping[str, str]) -> Contexts:
    """The contexts on disk; none when there is no file. Raises CliError for a file that cannot be understood."""
    path = config_path(environ)
    contexts = Contexts(path)
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return contexts
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CliError(f"{path}: is not valid TOML: {error}") from None
    tables = data.get("contexts", {})
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise CliError(f"{path}: [contexts.NAME] tables are wanted")
    for name, table in tables.items():
        contexts.targets[name] = Target(_text(table, "server"), _text(table, "token"), _text(table, "ca"))
    current = data.get("current", "")
    contexts.current = current if isinstance(current, str) else ""
    return contexts


def target(server: str | None, context: str | None, environ: Mapping[str, str]) -> Target:
    """Where to go: ``server`` beats the context. A context's token goes only to that context's own server."""
    contexts = read_contexts(environ)
    name = context or contexts.current
    found = contexts.targets.get(name)
    if context and found is None:
        raise CliError(f"there is no context {context}; `headrace context list` shows them")
    token = _environment_token(environ)
    ca = environ.get("HEADRACE_TLS_CA", "")
    if server:
        same = found is not None and found.server.rstrip("/") == server.rstrip("/")
        return Target(
            server, token or (found.token if same and found else ""), ca or (found.ca if same and found else "")
        )
    if found is not None:
        return Target(found.server, token or found.token, ca or found.ca)
    return Target(DEFAULT_SERVER, token, ca)


def _environment_token(environ: Mapping[str, str]) -> str:
    token = environ.get("HEADRACE_TOKEN", "").strip()
    file = environ.get("HEADRACE_TOKEN_FILE", "")
    if token or not file:
        return token
    try:
        return Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"HEADRACE_TOKEN_FILE: {file}: {getattr(error, 'strerror', None) or 'is not text'}") from None


def _text(table: Mapping[str, Any], name: str) -> str:
    value = table.get(name, "")
    return value if isinstance(value, str) else ""


def current_environ() -> Mapping[str, str]:
    return os.environ
