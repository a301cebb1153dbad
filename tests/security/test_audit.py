"""The gate itself: pip-audit's output becomes a verdict, but a silent network doesn't."""

from __future__ import annotations

import json
import tomllib
from itertools import chain

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.security.audit import ROOT, judged, lowest


def listed(*dependencies):
    return json.dumps({"dependencies": list(dependencies), "fixes": []})


GOOD = {"name": "click", "version": "8.1", "vulns": []}
SKIPPED = {"name": "hiredis", "skip_reason": "Dependency not found on PyPI"}
BAD = {"name": "redis", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}


@pytest.mark.parametrize(
    ("out", "err", "verdict"),
    [
        (listed(GOOD), "", (0, "pip-audit: no known fault in 1 packages")),
        (
            listed(GOOD, SKIPPED),
            "",
            (0, "pip-audit: no known fault in 1 packages, 1 unknown there"),
        ),
        (listed(SKIPPED), "", (0, "pip-audit: not run: no advisories here for any of 1 packages")),
        ("", "Traceback\nConnectionError: none", (0, "pip-audit: not run: ConnectionError: none")),
        ("", "", (0, "pip-audit: not run: it said nothing")),
        (listed(GOOD, BAD), "", (1, "pip-audit: known faults:\nredis 1: CVE-1, fixed in 2")),
    ],
)
def test_output_becomes_a_verdict(out, err, verdict):
    assert judged(out, err) == verdict


def test_lowest_versions_are_those_of_every_dependency_that_users_install():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = chain(project["dependencies"], *project["optional-dependencies"].values())
    named = {Requirement(line).name for line in asked} - {"jobq"}
    assert lowest().keys() == named


def test_lock_file_holds_a_version_of_every_dependency_within_its_bounds():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, groups = pyproject["project"], pyproject["dependency-groups"]
    lines = chain(
        project["dependencies"], *project["optional-dependencies"].values(), *groups.values()
    )
    asked = [Requirement(line) for line in lines if isinstance(line, str)]
    locked = {
        canonicalize_name(one.name): str(one.specifier).removeprefix("==")
        for one in map(Requirement, (ROOT / ".ci" / "constraints.txt").read_text().splitlines()[1:])
    }
    wrong = [
        str(one)
        for one in asked
        if one.name != "jobq"
        and not one.specifier.contains(locked.get(canonicalize_name(one.name), "0"))
    ]
    assert wrong == []
