"""tests/parts.py: which tests the targets of make run, and what they say of the others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = """
from tests import parts

pytest_addoption = parts.pytest_addoption

def pytest_configure(config):
    for name in ("long", "spark", "browser"):
        config.addinivalue_line("markers", name)
    config.pluginmanager.register(parts.Parts(config))
"""
TESTS = """
import os
import pytest

@pytest.fixture
def browser():
    pass

def test_cheap():
    pass

def test_fails():
    assert "PASS" in os.environ

@pytest.mark.long
def test_long():
    pass

@pytest.mark.spark
def test_spark():
    pass

def test_browser(browser):
    pass
"""


@pytest.fixture
def ran(tmp_path):
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "test_all.py").write_text(TESTS)

    def run(*options: str, **env: str) -> tuple[set[str], str]:
        """The tests that ran, and the last line."""
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:jobq", "-p", "no:xdist"]
        done = subprocess.run(
            [*command, *options], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, **env, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        named = set(re.findall(r"::test_(\w+) (?:PASSED|FAILED)", done.stdout))
        return named, done.stdout.splitlines()[-1]

    return run


def test_part_leaves_out_what_other_targets_run_and_names_it(ran):
    tests, last = ran("--part", "test")
    assert tests == {"cheap", "fails"}
    assert "make test-spark" in last
    assert "test-all runs 1 tests with Spark, 1 tests in a browser, 1 long tests" in last
    assert ran("--part", "spark")[0] == {"spark"}
    assert ran()[0] == {"cheap", "fails", "long", "spark", "browser"}


def test_rest_leaves_out_what_passed_before(ran):
    ran("--part", "test")
    ran("--part", "spark")
    assert ran("--rest", PASS="1")[0] == {"fails", "long", "browser"}
    assert ran("--rest")[0] == set()
