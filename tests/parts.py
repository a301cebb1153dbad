"""Select the tests of a make target with `pytest --part`; without the option, pytest runs all tests.

`--part test` checks every promise once, on Valkey, without Spark or a browser. `--part spark` checks the promises of
Spark. `make test-all` runs all others: both parts end with a line that names them.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

#: Tests that passed in this checkout; `--rest` skips them.
PASSED = Path(f".pytest_cache/passed-{sys.version_info[0]}.{sys.version_info[1]}.json")
#: Fixtures that imply a marker.
MARKED = {"spark": "spark", "kept_spark": "spark", "browser": "browser"}
#: Markers that a part leaves out, and the words for the last line.
LEFT_OUT = {
    "test": {"spark": "tests with Spark", "browser": "tests in a browser", "long": "long tests"},
    "spark": {"long": "long tests"},
}
BESIDES = "Redis, other Pythons, databases, and peers in Ruby and Node"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=[*LEFT_OUT], help="run the tests of a make target")
    parser.addoption(
        "--rest", action="store_true", help="leave out tests that passed in an earlier run"
    )


class Parts:
    """Plugin: selects and counts tests, and records the passed ones."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._left: Counter[str] = Counter()
        self._passed: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselect the tests of other parts."""
        for item in items:
            for name in MARKED.keys() & set(getattr(item, "fixturenames", ())):
                item.add_marker(MARKED[name])
        part = self._config.getoption("part")
        before = passed() if self._config.getoption("rest") else set()
        kept = []
        for item in items:
            why = self._why_left(item, part) or ("passed" if item.nodeid in before else "")
            if why:
                self._left[why] += 1
            else:
                kept.append(item)
        if len(kept) < len(items):
            chosen = set(kept)
            self._config.hook.pytest_deselected(items=[one for one in items if one not in chosen])
            items[:] = kept

    def _why_left(self, item: pytest.Item, part: str | None) -> str:
        if part is None:
            return ""
        marked = [name for name in LEFT_OUT[part] if item.get_closest_marker(name)]
        if marked:
            return marked[0]
        return "other" if part == "spark" and not item.get_closest_marker("spark") else ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome."""
        if report.failed:
            self._passed.discard(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file; processes of xdist report their counts instead."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left"] = dict(self._left)
        elif self._passed:
            PASSED.parent.mkdir(exist_ok=True)
            # Another run may read it at the same time.
            part = PASSED.with_name(f"{PASSED.name}.{os.getpid()}")
            part.write_text(json.dumps(sorted(passed() | self._passed)))
            part.replace(PASSED)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Receive the counts from a process of xdist."""
        # All processes collect the same tests.
        self._left = Counter(getattr(node, "workeroutput", {}).get("left", self._left))

    def pytest_unconfigure(self) -> None:
        """Name the tests that only other targets run, in the last line."""
        part = self._config.getoption("part")
        if part is not None and not hasattr(self._config, "workerinput"):
            counted = {name: word for name, word in LEFT_OUT[part].items() if self._left[name]}
            left = [f"{self._left[name]} {word}" for name, word in counted.items()]
            spark = "make test-spark checks Spark; " if part == "test" else ""
            print(f"Besides, {spark}make test-all runs {', '.join([*left, BESIDES])}")


def passed() -> set[str]:
    """Return the tests that passed in earlier runs."""
    return set(json.loads(PASSED.read_text())) if PASSED.exists() else set()
