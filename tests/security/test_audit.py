"""The gate itself: what pip-audit says becomes a verdict, and a silent network is none."""

from __future__ import annotations

import json

import pytest

from tests.security.audit import judged


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
