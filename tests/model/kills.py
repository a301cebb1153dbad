"""Print each fault of the two lists, the test that notices it, and the promise it breaks.

`python -m tests.model.kills` takes some ten seconds. Compare its output before and after a change of the tests or of
the scopes. It exits with 1 if a fault survives.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.model import explorer as queue
from tests.model.explored import Explored
from tests.model.mutants import MUTANTS
from tests.model.scopes import SCOPES
from tests.model.topic import explorer as topic
from tests.model.topic.scopes import SCOPES as TOPIC_SCOPES
from tests.model.topic.test_topic_explorer import MUTANTS as TOPIC_MUTANTS

QUEUE_TEST = "tests/model/test_mutants.py"
TOPIC_TEST = "tests/model/topic/test_topic_explorer.py"


def results() -> Iterator[tuple[str, str, Explored]]:
    """Yield the test, the fault and what the explorer found, one by one."""
    queues = {scope.name: scope for scope in SCOPES}
    topics = {scope.name: scope for scope in TOPIC_SCOPES}
    for mutant in MUTANTS:
        yield QUEUE_TEST, mutant.name, queue.Explorer(queues[mutant.scope], mutant).run()
    for mutant in TOPIC_MUTANTS:
        yield TOPIC_TEST, mutant.name, topic.Explorer(topics[mutant.scope], mutant).run()


def main() -> int:
    """Print a line per fault; return the exit code."""
    survived = 0
    for test, name, result in results():
        survived += not result.violation
        found = result.violation.splitlines()[0] if result.violation else "SURVIVED"
        print(f"{test}[{name}]: {found}, after {len(result.trace)} steps in {result.scope.name!r}")
    return bool(survived)


if __name__ == "__main__":
    sys.exit(main())
