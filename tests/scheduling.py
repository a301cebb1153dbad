"""Which process of pytest-xdist runs which tests, with `--dist loadfile`.

The tests of a file run in one process, so they share what is made once per module. There are three exceptions:
all tests that use the Spark session run in the same process, so that only one JVM starts; so do all tests that read
the sources of the package, which share the syntax trees; and tests of the explorer share nothing, so each can run
anywhere. Long units start first, so that the processes end together.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bench import sources

ROOT = Path(__file__).resolve().parents[1]
SPARK = "the Spark session"
SOURCES = "the syntax trees"
#: A function of a test file that takes the fixture `spark` or `kept_spark`.
TAKES_SPARK = re.compile(r"^def \w+\([^)]*\b(kept_)?spark\b", re.MULTILINE)
#: How a test file imports the syntax trees, or the counts made from them.
READS_SOURCES = re.compile(r"^from bench(\.| import )(sources|shape)\b", re.MULTILINE)
#: Tests that take seconds each, because processes start or time must pass: the longest units first.
LONG = (
    SPARK, "tests/model/", "tests/pipeline/", "tests/upgrade/", "tests/chaos/", "tests/interop/",
    "tests/docs/test_pages.py", "tests/lifecycle/",
)  # fmt: skip


@cache
def takes_spark(file: str) -> bool:
    """Return whether tests of the file use the Spark session."""
    return file.startswith("tests/pipeline/") and bool(
        TAKES_SPARK.search((ROOT / file).read_text())
    )


@cache
def reads_sources(file: str) -> bool:
    """Return whether tests of the file read the sources of the whole package."""
    text = (ROOT / file).read_text() if file.endswith(".py") else ""
    return "bench" in text and bool(READS_SOURCES.search(text))


def unit(nodeid: str) -> str:
    """Return the name that all tests of the same process share."""
    file = nodeid.partition("::")[0]
    if reads_sources(file):
        return SOURCES
    if file.startswith("tests/model/"):
        return nodeid
    return SPARK if takes_spark(file) else file


def ordered(nodeids: list[str]) -> list[int]:
    """Return the places of the tests in the order in which their units start."""
    units = [unit(nodeid) for nodeid in nodeids]
    sizes = Counter(units)

    def rank(place: int) -> tuple[int, int, str]:
        name = units[place]
        area = next((n for n, prefix in enumerate(LONG) if name.startswith(prefix)), len(LONG))
        return area, -sizes[name], name

    return sorted(range(len(nodeids)), key=rank)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests in each process of xdist."""
    if hasattr(config, "workerinput"):
        items[:] = [items[place] for place in ordered([item.nodeid for item in items])]


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Free the syntax trees after the last test that reads them: the garbage collector would walk through them."""
    if unit(item.nodeid) == SOURCES and (nextitem is None or unit(nextitem.nodeid) != SOURCES):
        sources.forget()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return a scheduler that hands out the units in the order of the tests."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)
