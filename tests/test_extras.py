"""What is said where an optional package is missing, and how the documents install jobq."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from jobq import extras

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize(
    "extra",
    [
        "embedded",
        "sentry",
        "crypto",
        "lake",
        "spark",
        "otel",
        "metrics",
        "postgresql",
        "mysql",
        "django",
        "web",
    ],
)
def test_remedy_names_the_extra_and_its_packages_and_never_jobq(extra):
    command, _, remark = extras.install(extra).partition(" (")
    assert remark == f"the extra {extra})"
    pip, install, *named = shlex.split(command)
    assert (pip, install) == ("pip", "install")
    wanted = [Requirement(one) for one in EXTRAS[extra]]
    here = {
        canonicalize_name(one.name) for one in wanted if not one.marker or one.marker.evaluate()
    }
    assert {canonicalize_name(Requirement(one).name) for one in named} == here


def test_remedy_names_the_extra_when_nothing_is_known_of_it():
    assert "extra 'no such'" in extras.install("no such")


def test_documents_install_jobq_from_a_checkout():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    sources = [*(ROOT / "jobq").rglob("*.py")]
    wrong = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in (*pages, *sources)
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"pip install [^#`]*(?<![./\\w])[\"']?jobq\b", line)
    ]
    assert wrong == []
