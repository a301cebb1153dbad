"""Record the CPU of each test. `python -m tests.costs [PREFIX…]` lists the folders and the most expensive tests.

The CPU of a test includes its child processes that ended, and its use of the shared servers and of Spark's JVM.
Fixtures of a wider scope than a function are not included. `make test` prints the CPU of the whole run.
"""

from __future__ import annotations

import json
import resource
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.warm import warm

#: The CPU seconds of each test, from its latest run.
NOTED = Path(".pytest_cache/costs.json")
TOP = 40
#: A test that costs more is marked `long`.
LIMIT_S = 5.0
#: Tests over the limit that `make test` runs, because no other test checks this promise of the README. At most ten.
EXPENSIVE = {
    "tests/lifecycle/test_poison.py::test_each_kind_is_dead_after_three_crashes_and_the_good_ones_run_once": "poison",
    "tests/web/test_hostile.py::test_hostile_text_stays_text_on_every_page": "hostile text on every page",
}


#: Living processes whose CPU counts, such as the servers and the JVM that tests share.
WATCHED: set[int] = set()


def spent() -> float:
    """Return the CPU seconds of this process, its ended children and the watched processes."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    ended = warm.spent + sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return ended + sum(map(_of, WATCHED))


def _of(pid: int) -> float:
    """Return the CPU seconds of a process; 0 if it has ended, because it then counts as a child."""
    with suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system
    return 0.0


class Costs:
    """Plugin: measures each test, and writes the file at the end."""

    def __init__(self) -> None:
        self._shared = 0.0
        self._costs: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        """Measure shared fixtures separately."""
        if fixturedef.scope == "function":
            return (yield)
        before, inner = spent(), self._shared
        try:
            return (yield)
        finally:
            # A shared fixture may have set up another one, whose cost is counted already.
            self._shared = max(self._shared, inner + spent() - before)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Read the counters before the test."""
        item.stash[BEGAN] = (spent(), self._shared)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Add the cost to the last report of the test."""
        report = yield
        if report.when == "teardown":
            began, shared = item.stash[BEGAN]
            cost = spent() - began - (self._shared - shared)
            report.user_properties = [*report.user_properties, ("cpu", cost)]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the cost from the report."""
        self._costs.update(
            (report.nodeid, value) for name, value in report.user_properties if name == "cpu"
        )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Update the file."""
        if self._costs and not hasattr(session.config, "workerinput"):
            NOTED.parent.mkdir(exist_ok=True)
            NOTED.write_text(json.dumps({**noted(), **self._costs}))

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """Name the tests that should be long."""
        if config.getoption("part", None) == "test":
            for name, cost in self._costs.items():
                if cost > LIMIT_S and name.partition("[")[0] not in EXPENSIVE:
                    terminalreporter.line(f"mark as long: {name} took {cost:.1f} s of CPU")


BEGAN = pytest.StashKey[tuple[float, float]]()


def noted() -> dict[str, float]:
    """Read the file; return an empty dict if there is none."""
    found: dict[str, float] = json.loads(NOTED.read_text()) if NOTED.exists() else {}
    return found


def folder(nodeid: str) -> str:
    """Return the folder of a test, at most three levels deep."""
    return "/".join(nodeid.partition("::")[0].split("/")[:-1][:3])


def listed(costs: dict[str, float]) -> list[str]:
    """Return the lines of the report."""
    seconds: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for nodeid, cost in costs.items():
        seconds[folder(nodeid)] += cost
        tests[folder(nodeid)] += 1
    lines = [f"{sum(costs.values()):8.1f} s  {len(costs):6}  all"]
    lines += [f"{cost:8.1f} s  {tests[name]:6}  {name}" for name, cost in seconds.most_common()]
    dear = sorted(costs.items(), key=lambda pair: -pair[1])[:TOP]
    lines += ["", f"the {len(dear)} most expensive tests:"]
    return lines + [f"{cost:8.1f} s  {nodeid}" for nodeid, cost in dear]


def main() -> None:
    """Print the report for all tests, or for those that begin with a given prefix."""
    below = tuple(sys.argv[1:])
    costs = {name: cost for name, cost in noted().items() if not below or name.startswith(below)}
    if not costs:
        sys.exit("no recorded costs; run pytest first")
    print(*listed(costs), sep="\n")


if __name__ == "__main__":
    main()
