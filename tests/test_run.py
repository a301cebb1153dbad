"""tests/run.py: a run kills leftover processes of its tests, even without the mark of tests.leftovers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

LEAVES = """
import subprocess

def test_leaves_a_process(tmp_path):
    left = subprocess.Popen(["sleep", "1000"], env={}, start_new_session=True)
    print(f"LEFT {left.pid}")
"""


def test_run_kills_processes_that_its_tests_left(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(LEAVES)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.run", "some tests", "-sqp", "no:cacheprovider", "--rootdir", str(tmp_path),
         "-c", "/dev/null", str(tmp_path)],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    left = ended.stdout.partition("LEFT ")[2].split()[0]
    assert f"killed a leftover process: {left} sleep" in ended.stdout
    assert not psutil.pid_exists(int(left))
