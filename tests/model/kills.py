"""Print each fault of the explorers' lists, the test that notices it, and the promise it breaks.

`python -m tests.model.kills` takes some twenty seconds. Compare its output before and after a change of the tests or of
the scopes. It exits with 1 if a fault survives.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.model import test_mutants as queue
from tests.model.explored import Explored
from tests.model.flow import test_flow_explorer as flow
from tests.model.partition import test_partition_explorer as partition
from tests.model.topic import test_topic_explorer as topic
from tests.protocols.reliable import test_every_interleaving as reliable


def results() -> Iterator[tuple[str, str, Explored]]:
    """Yield the test, the fault and the explorer's result, one by one."""
    for tests in (queue, partition, topic, flow, reliable):
        file = f"{tests.__name__.replace('.', '/')}.py"
        for name in tests.NAMES:
            yield file, name, tests.explored(name)


def main() -> int:
    """Print a line per fault; return the exit code."""
    survived = 0
    for file, name, result in results():
        survived += not result.violation
        found = result.violation.splitlines()[0] if result.violation else "SURVIVED"
        print(f"{file}[{name}]: {found}, after {len(result.trace)} steps in {result.scope.name!r}")
    return bool(survived)


if __name__ == "__main__":
    sys.exit(main())
