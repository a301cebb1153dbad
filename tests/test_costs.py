"""tests/costs.py: recorded CPU, and the exceptions from its limit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.costs import EXPENSIVE, listed, noted

ROOT = Path(__file__).resolve().parents[1]
BURNS = """
import subprocess, sys, time
import pytest

def burn():
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass

@pytest.fixture(scope="module")
def shared():
    burn()

def test_burns_alone(shared):
    pass

def test_burns_here():
    burn()

def test_burns_in_a_process():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.3: pass"])
"""


RECORDED = """
from tests import warm
from tests.costs import Costs

warm.install()

def pytest_configure(config):
    config.pluginmanager.register(Costs())
"""


def test_costs_include_processes_but_no_shared_fixtures(tmp_path, monkeypatch):
    (tmp_path / "test_burning.py").write_text(BURNS)
    (tmp_path / "conftest.py").write_text(RECORDED)
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:jobq", "-p", "no:xdist", "."],
        cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    costs = {name.rpartition("::")[2]: cost for name, cost in noted().items()}
    assert costs["test_burns_here"] >= 0.2 > costs["test_burns_alone"]
    assert costs["test_burns_in_a_process"] >= 0.2
    assert listed(noted())[0].split()[2] == "3"


def test_exceptions_are_few_and_exist():
    assert len(EXPENSIVE) <= 10
    for nodeid in EXPENSIVE:
        file, _, name = nodeid.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()
