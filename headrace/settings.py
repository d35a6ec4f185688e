"""The settings of all processes in one place, so that one file and one environment can serve several of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fleet.errors import FieldError, InvalidInput
from fleet.process.schema import schema_of
from fleet.process.settings import CONTRACT_NAMES, PREFIX, Loaded, load_with_origins, read_table

PROCESSES = ("controlplane", "router", "agent")
CLI_VARIABLES = frozenset({"server", "token", "token_file", "context", "config", "tls_ca"})


def model_of(process: str) -> type[BaseModel]:
    """The settings model of a process. Imports that tier's settings only."""
    match process:
        case "controlplane":
            from controlplane.settings import ControlPlaneSettings

            return ControlPlaneSettings
        case "router":
            from regional.settings import RouterSettings

            return RouterSettings
        case "agent":
            from agents.settings import AgentSettings

            return AgentSettings
        case _:
            raise ValueError(process)


def load_process(
    process: str,
    *,
    config_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Loaded[Any]:
    """Settings of one process; names that only other processes use are left to them. Raises InvalidInput."""
    return load_with_origins(
        model_of(process),
        process,
        config_file=config_file,
        environ=os.environ if environ is None else environ,
        flags=flags,
        known=known_names(),
    )


def known_names() -> frozenset[str]:
    """Every name, in lower case and without the prefix, that some process or command takes from the environment."""
    names = set(CONTRACT_NAMES) | CLI_VARIABLES
    for process in PROCESSES:
        names.update(schema_of(model_of(process)).by_name)
    return frozenset(names)


def check_everything(config_file: Path | None, environ: Mapping[str, str]) -> list[FieldError]:
    """What is wrong with a file and an environment, for every process that they speak of.

    A process that the file has no table for is checked too, for its part of the environment.
    """
    errors: dict[str, FieldError] = {}
    tables = read_table(config_file) if config_file is not None else {}
    for process in PROCESSES:
        named = process in tables or any(name.startswith(f"{PREFIX}{process.upper()}_") for name in environ)
        if not named and tables:
            continue
        try:
            load_process(process, config_file=config_file, environ=environ)
        except InvalidInput as error:
            errors.update({str(e): e for e in error.errors})
    return list(errors.values())
