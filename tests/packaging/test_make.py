"""The targets of the Makefile: each installs what it runs, and a part that fails hides no other part."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import tools

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
#: Programs and modules that another package than that of their name brings.
BROUGHT = {"sphinx-build": "sphinx", "xdist": "pytest-xdist"}
#: The programs of every virtual environment.
GIVEN = {"python", "pip", "venv"}


def required(group: str) -> set[str]:
    """Names of the packages of a dependency group, with those of the groups and extras that it includes."""
    found: set[str] = set()
    for one in PROJECT["dependency-groups"][group]:
        found |= required(one["include-group"]) if isinstance(one, dict) else packages(one)
    return found


def packages(requirement: str) -> set[str]:
    """The name of the package; of this project's, what its extras bring."""
    name, extras = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", requirement).groups()
    if name != "jobq":
        return {name}
    brought = PROJECT["project"]["optional-dependencies"]
    named = [one for extra in (extras or "").split(",") if extra for one in brought[extra]]
    return {"jobq"}.union(*map(packages, named))


def installed(line: str) -> set[str]:
    """What a line of pip installs."""
    groups = [required(group) for group in re.findall(r"--group (\w+)", line)]
    editable = [packages(f"jobq{extras}") for extras in re.findall(r"-e '\.(\[[\w,]+\])'", line)]
    return set().union(*groups, *editable)


def ran(line: str) -> set[str]:
    """Programs of the environment and modules that a line runs, by their package; the project's own aren't any."""
    programs = set(re.findall(r"fresh/bin/([\w-]+)", line))
    modules = {name.partition(".")[0] for name in re.findall(r"bin/python -m ([\w.]+)", line)}
    if "tests.security.audit" in line:
        modules.add("pip-audit")
    if re.search(r"pytest.* -n \d", line):
        modules.add("xdist")
    own = {path.name for path in ROOT.iterdir()}
    return {BROUGHT.get(name, name) for name in (programs | modules) - GIVEN - (own - {"jobq"})}


def printed(target: str, *variables: str) -> list[str]:
    """The lines that a target would run in a fresh clone, continued lines as one."""
    command = ["make", "-n", "--no-print-directory", "VENV=fresh", *variables, target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.replace("\\\n", " ").splitlines()


TARGETS = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("target", sorted({*TARGETS} - {"help", "clean"}))
def test_target_installs_every_tool_that_it_runs_when_the_clone_is_fresh(target: str):
    there: set[str] = set()
    lines = printed(target)
    assert any("fresh/bin/" in line for line in lines)
    for line in lines:
        there |= installed(line)
        # pip's own lines name the environment only.
        used = set() if " -m pip install" in line and "pytest" not in line else ran(line)
        assert used <= there, f"{sorted(used - there)} not installed before: {line}"


def brought(names: set[str]) -> set[str]:
    """Packages with those that they need, normalised; extras aside."""
    found: set[str] = set()
    left = {canonicalize_name(name) for name in names}
    while left:
        name = left.pop()
        found.add(name)
        for needed in (metadata.requires(name) or []) if name != "jobq" else []:
            asked = Requirement(needed)
            if asked.marker is None or asked.marker.evaluate({"extra": ""}):
                left |= {canonicalize_name(asked.name)} - found
    return found


def imported() -> dict[str, Path]:
    """Top-level modules beyond Python's that tests import or run with -m, and a file that does."""
    found: dict[str, Path] = {}
    # A program of `make check`, which brings what it runs.
    for path in {*(ROOT / "tests").rglob("*.py")} - {ROOT / "tests" / "security" / "audit.py"}:
        text = path.read_text(encoding="utf-8")
        names = (
            re.findall(r'"-m",\s*"(\w+)', text) if "python" in text or "sys.exec" in text else []
        )
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.append(node.module or "")
        found |= {name.partition(".")[0]: path for name in names}
    return {
        name: path for name, path in found.items() if name not in sys.stdlib_module_names | GIVEN
    }


def test_make_test_all_installs_every_package_that_a_test_imports():
    # The packages themselves say what they need.
    tools.library("playwright")
    needed = required("all")
    needed |= {re.match(r"[\w-]+", one)[0] for one in PROJECT["project"]["dependencies"]}
    there, homes = brought(needed), metadata.packages_distributions()
    lacking = {
        f"{name} ({path.relative_to(ROOT)})"
        for name, path in imported().items()
        if name in homes and not {canonicalize_name(one) for one in homes[name]} & there
    }
    assert not lacking


STUB = """#!/bin/sh
echo "$*" >> "$PLACE/ran"
case "$*" in
*"%d.%d"*) echo 3.11;;
*$FAILING*) exit 1;;
# What failed fails again, alone.
*"-m tests.again"*) case "$FAILING" in pytest*|tests.run*) exit 1;; esac;;
esac
"""


def environment(place: Path) -> None:
    """An environment in which nothing is left to install, and the stub is every program."""
    (place / "bin").mkdir(parents=True)
    for name in ("bin/python", "bin/jobq"):
        (place / name).write_text(STUB)
        (place / name).chmod(0o755)
    for name in (".installed", ".tested", ".tested-spark", ".tested-all"):
        (place / name).touch()


def made(
    target: str, failing: str, place: Path, others: str = "3.11"
) -> tuple[subprocess.CompletedProcess[str], str]:
    """A target with a stub as its Python, which fails where `failing` is in its arguments; and what the stub ran."""
    environment(place / "venv")
    done = subprocess.run(
        ["make", f"VENV={place / 'venv'}", f"OTHERS={others}", target], cwd=ROOT,
        env={**os.environ, "PLACE": str(place), "FAILING": failing, "PATH": f"{place}:{os.environ['PATH']}"},
        capture_output=True, text=True,
    )  # fmt: skip
    return done, (place / "ran").read_text()


@pytest.mark.parametrize("name", ["QUICK", "INTERPRETED", "DEPLOYED"])
def test_every_file_that_the_makefile_names_is_there(name: str):
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    [named] = re.findall(rf"^{name} = (.*)$", text, re.MULTILINE)
    assert named.split() and all((ROOT / path).exists() for path in named.split()), named


PARTS = {"test-pythons": "pytest -q -n", "tests": "tests.run make test-all -n"}


def with_another_python(place: Path) -> Path:
    """Add Python 3.12 with an environment to the path."""
    environment(place / "venv-3.12")
    (place / "python3.12").write_text("#!/bin/sh\n")
    (place / "python3.12").chmod(0o755)
    return place


@pytest.mark.parametrize("part", PARTS)
def test_make_test_all_runs_every_part_and_fails_at_the_end_when_one_fails(
    part: str, tmp_path: Path
):
    done, ran = made("test-all", PARTS[part], with_another_python(tmp_path), "3.12")

    assert all(called in ran for called in PARTS.values()), ran
    assert done.returncode != 0
    assert f"make test-all: failed: {part}\n" in done.stderr


def test_make_test_pythons_tries_the_next_python_when_one_fails(tmp_path: Path):
    for version in ("3.12", "3.13"):
        environment(tmp_path / f"venv-{version}")
        (tmp_path / f"python{version}").write_text("#!/bin/sh\n")
        (tmp_path / f"python{version}").chmod(0o755)
    done, _ = made("test-pythons", "pytest", tmp_path, "3.11 3.12 3.13")

    assert done.returncode != 0
    assert "make test-pythons: failed: 3.12 3.13\n" in done.stderr
