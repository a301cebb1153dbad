"""Steps that a running step adds together: whoever adds them is killed before each of its calls in turn."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from jobq import job
from jobq.client.connection import Client
from jobq.flows import adding
from jobq.flows.adding import RunningFlow
from jobq.jobs.registry import Registry
from jobq.queue.types import Ending
from tests.flows.flowing import Flowing, names, step
from tests.flows.test_kills import KilledError, MortalClient

F, NSTEPS = "import:7", 5


@job(queue="low", registry=Registry())
def load(number: int) -> None: ...


def add(client: Client, context: Any) -> None:
    flow = RunningFlow(client, context)
    with flow.together():
        first = flow.step(load, 0, name="s0")
        for number in range(1, NSTEPS):
            flow.step(load, number, name=f"s{number}", after=[first][: number % 2])


@pytest.mark.one_server
@pytest.mark.parametrize("outcome", ["done", "dead"])
def test_steps_that_are_added_together_run_all_or_none_when_a_process_is_killed(
    client: Client, redis: Any, monkeypatch: pytest.MonkeyPatch, outcome: Any
):
    monkeypatch.setattr(adding, "TOGETHER", 2)
    added = [f"s{number}" for number in range(NSTEPS)]
    for kill_at in count(1):
        redis.flushall()
        flowing, mortal = Flowing(client), MortalClient(client.settings)
        mortal.kill_at = kill_at
        flowing.start(F, step("a"), step("end", "a", when="ended"))
        flowing.drain()
        low = flowing.queues["low"]
        [message] = low.dequeue(8).messages
        context: Any = _Mid(message.mid)
        try:
            add(mortal, context)
        except KilledError:
            assert flowing.facts(F).state == "running"
            redis.delete("jobq:{low}:flow-claim")
            flowing.drain()
            assert not low.dequeue(8).messages
            if outcome == "done":
                add(client, context)
        mortal.close()
        low.finish([Ending(mid=message.mid, token=message.token, outcome=outcome)])
        ran = names(flowing.work())
        assert sorted(ran) == (["end", *added] if outcome == "done" else ["end"])
        assert flowing.facts(F).state == ("done" if outcome == "done" else "failed")
        if mortal.ncalls < kill_at:
            assert kill_at > NSTEPS // 2 + 2
            return


class _Mid:
    """Values that a running flow reads from its context."""

    def __init__(self, mid: str) -> None:
        self.mid = mid
