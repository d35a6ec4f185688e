"""Settings of a process: TOML file, environment and flags into one typed model; wrong keys and values are named.

Flags beat the environment, which beats the file. In the environment a key of table ``router`` is ``HEADRACE_ROUTER_<KEY>``
or, shorter and weaker, ``HEADRACE_<KEY>``. An empty variable counts as unset. Secrets, and URLs that may hold one, have a
``_FILE`` twin whose content is read again when it changes (:func:`secret_reader`).
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, PrivateAttr, SecretStr, ValidationError, field_validator

from fleet.errors import FieldError, InvalidInput
from fleet.process.schema import Key, Schema, schema_of
from fleet.process.secret_file import SecretFile

PREFIX = "HEADRACE_"
TABLES = ("controlplane", "router", "agent", "tls", "log")
SHARED_TABLES = ("tls", "log")
ENGINE_TABLES = "engine"
"""``[[engine]]``: the agent's engines, at the top of the file."""
_CONFIG_LIMIT_BYTES = 1 << 20

# Names of the public contract. A process that does not use one of them leaves it to its neighbours in the same environment.
# fmt: off
CONTRACT_NAMES = frozenset({
    "database_url", "database_direct_url", "redis_url", "controlplane", "routers", "region", "zone", "node",
    "state_dir", "geoip_db", "trusted_proxies", "advertise", "bootstrap_admin_token", "secret_key", "router_token",
    "join_token", "engines", "agent_on_term", "insecure", "expose", "xid_policy", "timeout_connect",
    "timeout_first_byte", "timeout_idle", "timeout_total", "retry_max", "retry_budget", "limits_body",
    "limits_queue", "limits_streams", "shutdown_delay", "shutdown_grace", "agent_interval", "agent_lease",
    "tls_cert", "tls_key", "tls_ca", "tls_client_ca", "log_level", "log_format", "server", "token", "context",
    "config",
})
# fmt: on

_KUBERNETES = re.compile(
    r"(?:.*_)?(?:SERVICE_HOST|SERVICE_PORT(?:_.*)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_KUBERNETES_URL = re.compile(r"(?:tcp|udp|sctp)://")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+)\s*(B|kB|KB|KiB|MB|MiB|GB|GiB)?")
_BYTES = {"B": 1, "kB": 10**3, "KB": 10**3, "KiB": 1 << 10, "MB": 10**6, "MiB": 1 << 20, "GB": 10**9, "GiB": 1 << 30}


class TlsSettings(BaseModel):
    """Files in PEM form. ``cert`` and ``key`` serve; ``ca`` verifies the other side; ``client_ca`` demands client certificates."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    client_ca: Path | None = None

    @field_validator("*", mode="before")
    @classmethod
    def _unset(cls, value: Any) -> Any:
        return None if value == "" else value

    @classmethod
    def of(cls, settings: BaseModel) -> TlsSettings:
        """Of a process's settings, which hold them as a table ``tls`` or as fields ``tls_cert`` and so on."""
        nested = getattr(settings, "tls", None)
        if isinstance(nested, TlsSettings):
            return nested
        return cls.model_validate({name: getattr(settings, f"tls_{name}", None) for name in cls.model_fields})


class LogSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "pretty"] = "auto"
    """``auto``: pretty on a terminal, else JSON."""


class ProcessSettings(BaseModel):
    """Base of each tier's settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    insecure: bool = False
    """Serve off loopback without TLS or authentication."""
    tls: TlsSettings = TlsSettings()
    log: LogSettings = LogSettings()

    _secret_files: dict[str, SecretFile] = PrivateAttr(default_factory=dict)

    @field_validator("host", mode="before", check_fields=False)
    @classmethod
    def _without_brackets(cls, host: Any) -> Any:
        """``[::1]``, as one writes it before a port, is the address ``::1``."""
        return host[1:-1] if isinstance(host, str) and host.startswith("[") and host.endswith("]") else host


Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class _Written:
    """A value and where it was written, in the words an error uses."""

    value: Any
    source: str
    pointer: str
    file: SecretFile | None = None

    def error(self, reason: str) -> FieldError:
        return FieldError(self.pointer, reason, self.source)


_Values = dict[tuple[str, ...], _Written]


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Model]):
    """Settings with where each value that is not a default was written."""

    settings: Model
    origins: Mapping[tuple[str, ...], str]


def load(
    model: type[Model],
    table: str,
    *,
    config_file: Path | None = None,
    environ: Mapping[str, str],
    flags: Mapping[str, Any] | None = None,
    known: Collection[str] = (),
) -> Model:
    """The settings of the process whose table is ``table``; see :func:`load_with_origins`."""
    loaded = load_with_origins(model, table, config_file=config_file, environ=environ, flags=flags, known=known)
    return loaded.settings


def load_with_origins(
    model: type[Model],
    table: str,
    *,
    config_file: Path | None = None,
    environ: Mapping[str, str],
    flags: Mapping[str, Any] | None = None,
    known: Collection[str] = (),
) -> Loaded[Model]:
    """The settings of the process whose table is ``table``, and where they come from.

    ``flags`` maps field names to values (None is not given); ``known`` are further names, in lower case, that belong to
    other processes. Raises InvalidInput with one error for each wrong key or value.
    """
    schema = schema_of(model)
    errors: list[FieldError] = []
    values: _Values = {}
    if config_file is not None:
        values.update(_from_file(schema, table, config_file, errors))
    values.update(_from_environment(schema, table, environ, {*CONTRACT_NAMES, *known}, errors))
    for name, value in (flags or {}).items():
        if value is not None:
            key = schema.by_name[name]
            values[key.path] = _Written(value, "command line", f"--{name.replace('_', '-')}")
    data = _nested(schema, values, errors)
    if errors:
        raise InvalidInput(errors)
    try:
        settings = model.model_validate(data)
    except ValidationError as error:
        raise InvalidInput([_named(e, values, table) for e in error.errors(include_url=False)]) from None
    if isinstance(settings, ProcessSettings):
        settings._secret_files.update({"_".join(p): w.file for p, w in values.items() if w.file is not None})
    return Loaded(settings, {path: f"{w.source} {w.pointer}" for path, w in values.items()})


def secret_reader(settings: BaseModel, name: str) -> Callable[[], str]:
    """A function that gives the present value of secret ``name``: read again from its file when that has changed.

    A file that vanishes or empties while the process runs leaves the last value in force.
    """
    watched = settings._secret_files.get(name) if isinstance(settings, ProcessSettings) else None
    if watched is not None:
        return watched.value
    value = getattr(settings, name)
    plain = value.get_secret_value() if isinstance(value, SecretStr) else value

    def fixed() -> str:
        return "" if plain is None else str(plain)

    return fixed


def read_table(config_file: Path) -> dict[str, Any]:
    """The file as TOML. Raises InvalidInput that names the file and, for broken TOML, the line."""
    source = str(config_file)
    try:
        if config_file.stat().st_size > _CONFIG_LIMIT_BYTES:
            raise InvalidInput([FieldError("", f"is larger than {_CONFIG_LIMIT_BYTES >> 20} MiB", source)])
        return tomllib.loads(config_file.read_text("utf-8"))
    except OSError as error:
        raise InvalidInput([FieldError("", error.strerror or "cannot be read", source)]) from None
    except UnicodeDecodeError:
        raise InvalidInput([FieldError("", "is not UTF-8 text", source)]) from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput([FieldError("", f"is not valid TOML: {error}", source)]) from None


def kubernetes_service_variable(name: str, value: str) -> bool:
    """True for a variable that Kubernetes sets in every pod for a Service whose name begins with ``headrace``."""
    rest = name.removeprefix(PREFIX)
    if _KUBERNETES.fullmatch(rest):
        return True
    return (rest == "PORT" or rest.endswith("_PORT")) and _KUBERNETES_URL.match(value) is not None


def _from_file(schema: Schema, table: str, config_file: Path, errors: list[FieldError]) -> _Values:
    values: _Values = {}
    source = str(config_file)
    for name, content in read_table(config_file).items():
        if name == table:
            if isinstance(content, dict):
                _walk(schema, (), content, source, f"[{name}] ", values, errors)
            else:
                errors.append(FieldError(name, f"must be a table: [{name}]", source))
        elif name in SHARED_TABLES:
            if isinstance(content, dict):
                _walk(schema, (name,), content, source, "", values, errors, shared=True)
            else:
                errors.append(FieldError(name, f"must be a table: [{name}]", source))
        elif name == ENGINE_TABLES:
            if "engines" in schema.by_name:
                _put(values, schema.by_name["engines"], False, content, source, f"[[{name}]]", errors)
        elif name not in TABLES:
            errors.append(FieldError(f"[{name}]", f"unknown table; known are {', '.join(TABLES)}, [[engine]]", source))
    return values


def _walk(
    schema: Schema,
    prefix: tuple[str, ...],
    content: Mapping[str, Any],
    source: str,
    label: str,
    values: _Values,
    errors: list[FieldError],
    *,
    shared: bool = False,
) -> None:
    for raw, value in content.items():
        name = "_".join((*prefix, raw.lower().replace("-", "_")))
        pointer = f"{label}{'.'.join((*prefix, raw))}"
        if name in schema.tables and isinstance(value, dict):
            _walk(schema, (*prefix, raw), value, source, label, values, errors)
            continue
        found = _find(schema, name)
        if found is None and shared and name.removesuffix("_file") in CONTRACT_NAMES:
            continue  # a shared table may say more than this process uses
        if found is None:
            errors.append(FieldError(pointer, "unknown key" + _suggest(name, schema), source))
            continue
        key, is_file = found
        _put(values, key, is_file, value, source, pointer, errors)


def _from_environment(
    schema: Schema, table: str, environ: Mapping[str, str], known: Collection[str], errors: list[FieldError]
) -> _Values:
    short: _Values = {}
    full: _Values = {}
    for variable in sorted(environ):
        value = environ[variable]
        if not variable.startswith(PREFIX) or not value or kubernetes_service_variable(variable, value):
            continue
        rest = variable.removeprefix(PREFIX).lower()
        found, values = _find(schema, rest), short
        if found is None and rest.startswith(f"{table}_"):
            found, values = _find(schema, rest.removeprefix(f"{table}_")), full
        if found is not None:
            key, is_file = found
            _put(values, key, is_file, value, "environment", variable, errors)
        elif not _foreign(rest, table, known):
            errors.append(FieldError(variable, "unknown variable" + _suggest(rest, schema, table=table), "environment"))
    return {**short, **full}


def _find(schema: Schema, name: str) -> tuple[Key, bool] | None:
    """The key called ``name`` and whether it is the ``_file`` twin that was written."""
    key = schema.by_name.get(name)
    if key is not None:
        return key, False
    key = schema.by_name.get(name.removesuffix("_file")) if name.endswith("_file") else None
    return (key, True) if key is not None and key.has_file_twin else None


def _foreign(rest: str, table: str, known: Collection[str]) -> bool:
    """True for the name of another process, of the command line or of the test suite."""
    others = tuple(f"{t}_" for t in TABLES if t != table and t not in SHARED_TABLES)
    return rest.startswith((*others, "test_")) or rest in known or rest.removesuffix("_file") in known


def _put(
    values: _Values, key: Key, is_file: bool, value: Any, source: str, pointer: str, errors: list[FieldError]
) -> None:
    twin = values.get(key.path)
    if twin is not None and (twin.file is not None) != is_file:
        errors.append(FieldError(pointer, f"and {twin.pointer} are both set; keep one", source))
        return
    if not is_file:
        values[key.path] = _Written(value, source, pointer)
        return
    if not isinstance(value, str):
        errors.append(FieldError(pointer, "must be the path of a file", source))
        return
    try:
        file = SecretFile(Path(value))
    except InvalidInput as error:
        errors.append(FieldError(pointer, error.errors[0].reason, source))
        return
    values[key.path] = _Written(file.value(), source, pointer, file)


def _nested(schema: Schema, values: _Values, errors: list[FieldError]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    by_path = {key.path: key for key in schema.keys}
    for path, written in values.items():
        try:
            value = _read(by_path[path], written.value)
        except ValueError as error:
            errors.append(written.error(str(error)))
            continue
        place = data
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    return data


def _read(key: Key, value: Any) -> Any:
    """A string as the key's kind means it; anything else as it is."""
    if not isinstance(value, str):
        return value
    match key.kind:
        case "list":
            return [part for part in re.split(r"\s*[,\n]\s*", value.strip()) if part]
        case "dict":
            pairs = [part.partition("=") for part in re.split(r"\s*,\s*", value.strip()) if part]
            if any(not sign for _, sign, _ in pairs):
                raise ValueError("must be a list such as name=value,name=value")
            return {name.strip(): item.strip() for name, _, item in pairs}
        case "seconds":
            found = _DURATION.fullmatch(value.strip())
            if found is None:
                raise ValueError("must be seconds, or a number with ms, s, m, h or d, such as 500ms or 2m")
            return float(found[1]) * _SECONDS[found[2] or "s"]
        case "bytes":
            found = _SIZE.fullmatch(value.strip())
            if found is None:
                raise ValueError("must be bytes, or a whole number with kB, KiB, MB, MiB, GB or GiB, such as 32MiB")
            return int(found[1]) * _BYTES[found[2] or "B"]
        case _:
            return value


def _named(error: Any, values: _Values, table: str) -> FieldError:
    """A pydantic error in the words of whoever wrote the value."""
    location = tuple(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "must be").replace("\n", " ")
    for length in range(len(location), 0, -1):
        written = values.get(location[:length])
        if written is not None:
            inner = ".".join(location[length:])
            return written.error(f"{inner}: {message}" if inner else message)
    if not location:  # a rule over several settings
        return FieldError(f"[{table}]", message, "settings")
    name = "_".join(location)
    if error["type"] == "missing":
        return FieldError(f"{PREFIX}{name.upper()}", f"is required (or {name} in [{table}], or its flag)", "settings")
    return FieldError(name, message, "settings")


def _suggest(name: str, schema: Schema, *, table: str = "") -> str:
    bare = name.removeprefix(f"{table}_") if table else name
    near = difflib.get_close_matches(bare, schema.by_name, n=1, cutoff=0.7)
    if not near:
        return ""
    return f"; did you mean {PREFIX}{near[0].upper()}?" if table else f"; did you mean {near[0]}?"
