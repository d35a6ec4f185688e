"""The hardware behind the fake driver: a file that a test rewrites while the agent runs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path


def uuid_of(number: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


@dataclass
class Gpu:
    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    total_mib: int = 81559
    used_mib: int = 1024
    utilisation: int = 37
    temperature: int = 54
    milliwatts: int = 310_000
    throttle: int = 0
    lost: bool = False
    sm: int = 1755
    sm_max: int = 1980
    ecc: int = 0
    recovery: int = 0
    pids: tuple[int, ...] = ()
    mig: bool = False
    error: int = 0

    def line(self) -> str:
        pids = f" pids={','.join(map(str, self.pids))}" if self.pids else ""
        extra = f"sm={self.sm} smmax={self.sm_max} ecc={self.ecc} recovery={self.recovery} mig={int(self.mig)}"
        return (
            f"gpu|{self.name}|{self.uuid}|{self.total_mib}|{self.used_mib}|{self.utilisation}|{self.temperature}"
            f"|{self.milliwatts}|{self.throttle:x}|{int(self.lost)}|{extra} err={self.error}{pids}"
        )


@dataclass
class Instance:
    parent: str
    uuid: str
    profile: str
    total_mib: int
    used_mib: int

    def line(self) -> str:
        return f"mig|{self.parent}|{self.uuid}|{self.profile}|{self.total_mib}|{self.used_mib}"


@dataclass
class Hardware:
    """What the driver sees. Call ``write`` after a change."""

    path: Path
    gpus: list[Gpu] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    error: int = 0
    hang: bool = False

    def write(self) -> None:
        lines = [f"!error {self.error}"] if self.error else []
        lines += ["!hang"] if self.hang else []
        lines += [item.line() for item in (*self.gpus, *self.instances)]
        temporary = self.path.with_suffix(".new")
        temporary.write_text("\n".join(lines) + "\n")
        os.replace(temporary, self.path)

    def xid(self, uuid: str, code: int) -> None:
        """The driver reports an error."""
        with open(f"{self.path}.xid", "a") as file:
            file.write(f"{uuid} {code}\n")
