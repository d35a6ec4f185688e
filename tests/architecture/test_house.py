"""Rules of the house that no other tool checks."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIERS = ("fleet", "controlplane", "regional", "agents", "headrace")


def tracked(*patterns: str) -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    return [ROOT / n for n in names if n and (ROOT / n).is_file()]


def sources() -> list[Path]:
    return [p for p in tracked("*.py") if "_pb2" not in p.name and p.relative_to(ROOT).parts[0] in TIERS]


def test_top_level_of_the_card_exists() -> None:
    for name in (
        "pyproject.toml",
        "README.md",
        "controlplane",
        "agents",
        "regional",
        "migrations",
        "tests",
        "docker-compose.yml",
    ):
        assert (ROOT / name).exists(), name


def test_files_have_one_purpose_each() -> None:
    long = {str(p.relative_to(ROOT)): n for p in sources() if (n := len(p.read_text().splitlines())) > 450}
    assert not long, f"over 450 lines: {long}"


def test_every_package_says_what_it_is_for() -> None:
    silent = [
        str(p.relative_to(ROOT))
        for p in sources()
        if p.name != "__init__.py" and not p.read_text().lstrip().startswith(('"""', "#!", "from __future__"))
    ]
    assert not silent


@pytest.mark.parametrize("word", ["utils", "common", "core", "helpers", "services"])
def test_no_folder_is_named_for_nothing(word: str) -> None:
    folders = {part for p in sources() for part in p.relative_to(ROOT).parts[:-1]}
    assert word not in folders


def test_nothing_names_a_registry_host_or_this_machine() -> None:
    forbidden = re.compile(r"files\.pythonhosted|pypi\.org|registry\.npmjs|deb\.debian|/work/|/root/|/tmp/team")
    found = []
    for path in tracked(
        "*.py", "*.md", "*.toml", "*.txt", "*.in", "*.yml", "*.yaml", "*.sh", "Makefile", ".ci/run", "deploy/*"
    ):
        if path == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if forbidden.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found


def test_no_unfinished_marks() -> None:
    mark = re.compile(r"\b(TODO|FIXME|XXX)\b|NotImplementedError")
    found = [
        f"{p.relative_to(ROOT)}:{i}"
        for p in sources()
        for i, line in enumerate(p.read_text().splitlines(), 1)
        if mark.search(line)
    ]
    assert not found


def test_locks_are_hashed_and_pinned() -> None:
    for lock in ("runtime.txt", "dev.txt"):
        text = (ROOT / "requirements" / lock).read_text()
        pins = re.findall(r"^[a-zA-Z0-9_.\[\]-]+==", text, re.M)
        assert len(pins) > 40
        entries = [block for block in re.split(r"\n(?=[a-zA-Z0-9])", text) if re.match(r"[a-zA-Z0-9_.\[\]-]+==", block)]
        assert all("--hash=sha256:" in block for block in entries)
