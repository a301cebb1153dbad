"""`python -m tests.again [option…]`: run failed tests of the last run again, alone, with these options of pytest.

Five processes of tests share two cores there. A test that fails beside the others and twice passes alone says that
the test is unsteady, or that the product is under load: the output names it, to be looked into. More than a few are no
accident.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
MAX_COUNT = 3
TIMES = 2

#: Runs these tests alone; pytest's exit code.
Run = Callable[[Sequence[str]], int]


def _run(ids: Sequence[str]) -> int:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        *sys.argv[1:],
        *ids,
    ]
    return subprocess.run(command, check=False).returncode


def judge(failed: Sequence[str], run: Run) -> str:
    """Run them again; what is wrong, or nothing."""
    if not failed:
        return "the run failed, but no test did"
    if len(failed) > MAX_COUNT:
        return f"{len(failed)} tests failed, more than the {MAX_COUNT} that are run again"
    for _ in range(TIMES):
        if run(failed) != 0:
            return "failed again, alone"
    return ""


def main() -> None:
    """Exit with 1 if the failures stand."""
    failed = sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []
    wrong = judge(failed, _run)
    if wrong:
        sys.exit(f"tests: {wrong}")
    print(f"unsteady: failed beside other tests, passed {TIMES} times alone:", *failed, sep="\n  ")


if __name__ == "__main__":
    main()
