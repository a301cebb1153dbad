"""A node of a Cluster dies with writes that its replica never got, or is away for a while: of a queue, of a flow."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from jobq.client.connection import Client, connect
from jobq.config import ServerSettings
from jobq.errors import UnavailableError
from jobq.flows.announcing import announce
from jobq.flows.checking import FlowCheck
from jobq.flows.draining import PASS_OVER_NS, Drainer
from jobq.flows.store import FlowStore
from jobq.flows.types import StoredFlow
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.client.deployments import Spread
from tests.conftest import binary, kinds
from tests.flows.flowing import call_of, step

SIZE = 40


def named_at(node: int, form: str) -> str:
    """Return a name whose hash tag belongs to this node."""
    return next(
        name
        for at in count()
        if key_slot(f"{{{(name := form.format(at))}}}".encode()) // 5461 == node
    )


class OfThree:
    """A Cluster of three nodes: the rows' queue on the first, the flow on the second, the last step's on the third."""

    def __init__(self, folder: Path, program: str) -> None:
        self._spread = Spread(program, folder)
        self.client: Client = connect(settings=ServerSettings(url=self._spread.url, patience_s=60))
        self.flow = named_at(1, "import:{}")
        self.rows = Queue(named_at(0, "rows{}"), self.client)
        self.last = Queue(named_at(2, "last{}"), self.client)
        self.store = FlowStore(self.client, self.flow)
        self.drainer = Drainer(self.client)
        self.accepted = 0

    def start(self) -> None:
        """A map of SIZE members, and a step after it."""
        steps = (
            step("rows", kind="map", source="stream", queue=self.rows.name),
            step("last", "rows", queue=self.last.name),
        )
        self.store.create(StoredFlow(steps, "hash", self.rows.name, 600_000))
        announce(self.client, self.rows.name, "begin", self.flow)
        self.store.reserve("rows", 0, SIZE)
        mids = [f"~{self.store.run}.rows.{number}" for number in range(SIZE)]
        self.rows.enqueue_members([(mid, call_of(mid)) for mid in mids])
        self.store.seal("rows", 1)
        self.drainer.drain(self.rows.name)

    def work(self, most: int) -> int:
        """Run members of the map, which nobody takes to the flow yet."""
        found = self.rows.dequeue(most).messages
        self.rows.finish([Ending(mid=one.mid, token=one.token) for one in found])
        return len(found)

    def end(self) -> None:
        """Run the last step, of which there must be one."""
        for queue in (self.rows, self.last):
            self.drainer.drain(queue.name)
        found = self.last.dequeue(8).messages
        self.accepted += len(found)
        ends = [Ending(mid=one.mid, token=one.token, result=b"7", result_ttl=600) for one in found]
        self.last.finish(ends)
        self.drainer.drain(self.last.name)

    @contextmanager
    def losing(self, number: int, *, copied: bool = False) -> Iterator[None]:
        """A node dies afterwards. Its replica is promoted, and has what is written within only if `copied`."""
        master, replica = self._spread.nodes[number], self._spread.replica(number)
        if not copied:
            replica.process.send_signal(signal.SIGSTOP)
            # Else what is sent to it waits in its socket, and is read after all.
            master.redis.execute_command("CLIENT", "KILL", "TYPE", "replica")
        yield
        master.kill()
        replica.process.send_signal(signal.SIGCONT)
        self._spread.promote(replica, number)

    @contextmanager
    def silent(self, number: int) -> Iterator[None]:
        """A node answers nothing within."""
        node = self._spread.nodes[number]
        node.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            node.process.send_signal(signal.SIGCONT)

    def hasty(self) -> Client:
        """Another client, without patience."""
        return connect(
            settings=ServerSettings(url=self._spread.url, patience_s=0.2, socket_timeout_s=0.2)
        )

    def surely(self, durability: str, within_s: float = 0.2) -> Client:
        """Another client, which waits for a confirmation."""
        return connect(
            settings=ServerSettings(
                url=self._spread.url,
                patience_s=60,
                durability=durability,
                durable_within_s=within_s,
            )
        )

    def close(self) -> None:
        self.client.close()
        self._spread.close()


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OfThree]:
    deployment = OfThree(tmp_path, binary(kinds(request.config)[-1]) or "")
    yield deployment
    deployment.close()


@pytest.mark.one_server
def test_ends_that_a_queue_lost_come_again_and_count_once(cluster: OfThree):
    cluster.start()
    with cluster.losing(0):
        assert cluster.work(SIZE // 2) == SIZE // 2
        assert cluster.drainer.drain(cluster.rows.name) == 1
    facts = cluster.store.facts()
    assert facts is not None and facts.steps[0].done == SIZE // 2
    # The queue hands all of them out again.
    assert cluster.work(SIZE) == SIZE
    cluster.end()
    facts = cluster.store.facts()
    assert facts is not None and (facts.state, facts.steps[0].done) == ("done", SIZE)
    assert cluster.accepted == 1


@pytest.mark.one_server
def test_ends_that_a_flow_lost_are_put_in_order_by_a_check(cluster: OfThree):
    """The one hole: the entries were deleted when the flow had their bits, and then it hasn't."""
    cluster.start()
    for queue in (cluster.rows, cluster.last):
        queue.admin.events_level("all")
    with cluster.losing(1):
        assert cluster.work(SIZE) == SIZE
        assert cluster.drainer.drain(cluster.rows.name) == 1
        assert cluster.rows.admin.flow_backlog().entries == 0
    cluster.rows.admin.collect()
    cluster.end()
    facts = cluster.store.facts()
    assert facts is not None and (facts.state, facts.steps[0].ended) == ("running", 0)
    checked = FlowCheck(cluster.client).flow(cluster.flow)
    assert (checked.ended, checked.nlost) == (SIZE, 0)
    cluster.end()
    facts = cluster.store.facts()
    assert facts is not None and (facts.state, facts.steps[0].done) == ("done", SIZE)
    # The last step was sent, and done, before the flow forgot that it had sent it; it isn't sent again.
    assert cluster.accepted == 1
    assert cluster.store.results(["last:0"]) == {"last:0": b"7"}
    assert cluster.rows.admin.flow_backlog().entries == 0


@pytest.mark.one_server
def test_while_the_server_of_a_flow_is_away_its_jobs_run_on(cluster: OfThree):
    cluster.start()
    hasty, now = cluster.hasty(), [0]
    late = Drainer(hasty, lambda: now[0])
    with cluster.silent(1):
        for _ in range(4):
            assert cluster.work(SIZE // 4) == SIZE // 4
            # On a busy machine the queue's node is also too slow for this client.
            with suppress(UnavailableError):
                late.drain(cluster.rows.name)
            now[0] += PASS_OVER_NS + 1
        assert cluster.rows.admin.flow_backlog().entries == 4
        with pytest.raises(UnavailableError):
            FlowStore(hasty, cluster.flow).facts()
    hasty.close()
    cluster.client.command("DEL", f"{cluster.rows.prefix}flow-claim")
    cluster.end()
    facts: Any = cluster.store.facts()
    assert (facts.state, facts.steps[0].done, cluster.accepted) == ("done", SIZE, 1)


@pytest.mark.one_server
def test_ends_that_only_the_master_of_a_flow_had_stay_at_their_queue_at_replicas(
    cluster: OfThree,
):
    """Lose the master, but the drainer waits for a replica before it deletes the entries."""
    cluster.start()
    surely = cluster.surely("replicas=1")
    late = Drainer(surely)
    with cluster.losing(1):
        # Nothing is ready by half of them, so that only their confirmation is missing.
        assert cluster.work(SIZE // 2) == SIZE // 2
        assert late.drain(cluster.rows.name) == 0
        facts = cluster.store.facts()
        assert facts is not None and facts.steps[0].done == SIZE // 2
        assert cluster.rows.admin.flow_backlog().entries == 1
    surely.close()
    cluster.client.command("DEL", f"{cluster.rows.prefix}flow-claim")
    facts = cluster.store.facts()
    assert facts is not None and facts.steps[0].ended == 0
    assert cluster.work(SIZE) == SIZE // 2
    cluster.end()
    facts = cluster.store.facts()
    assert facts is not None and (facts.state, facts.steps[0].done) == ("done", SIZE)
    assert cluster.accepted == 1


@pytest.mark.one_server
def test_ends_whose_entries_were_deleted_at_replicas_outlive_a_failover_of_their_flow(
    cluster: OfThree,
):
    cluster.last = Queue(named_at(1, "last{}"), cluster.client)
    cluster.start()
    surely = cluster.surely("replicas=1", within_s=4)
    with cluster.losing(1, copied=True):
        assert cluster.work(SIZE) == SIZE
        assert Drainer(surely).drain(cluster.rows.name) == 1
        assert cluster.rows.admin.flow_backlog().entries == 0
    surely.close()
    facts = cluster.store.facts()
    assert facts is not None and [one.done for one in facts.steps] == [SIZE, 0]
    cluster.end()
    facts = cluster.store.facts()
    assert facts is not None and (facts.state, cluster.accepted) == ("done", 1)
