"""A worker on a Cluster: queues in different slots, woken on one connection each; a node that is away."""

from __future__ import annotations

import signal

import pytest
from redis.crc import key_slot

from jobq.cli import main
from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.queue.queue import Queue
from tests.client.deployments import Spread
from tests.conftest import binary
from tests.lifecycle.conftest import until


@pytest.fixture
def spread(server, tmp_path):
    deployment = Spread(binary(server.kind), tmp_path)
    for node in deployment.nodes:
        node.redis.config_set("cluster-require-full-coverage", "no")
    yield deployment
    deployment.close()


@pytest.fixture
def cluster(spread):
    client = connect(settings=ServerSettings(url=spread.url))
    yield client
    client.close()


@pytest.fixture
def queues(cluster):
    """Six queues, two on each node, in the nodes' order."""
    by_node = [[], [], []]
    for number in range(40):
        queue = Queue(f"queue{number}", cluster)
        by_node[min(key_slot(queue.wake_key.encode()) // 5461, 2)].append(queue)
    return [queue for there in by_node for queue in there[:2]]


def named(queues):
    """Return their names in options and logs."""
    return ",".join(queue.name for queue in queues)


def test_idle_worker_is_woken_for_queues_on_every_node(spread, start, send, ledger, queues):
    worker = start("--processes", "1", url=spread.url, queues=named(queues))
    for round_ in range(3):
        for queue in queues:
            send("quick", f"{queue.name}-{round_}", to=queue)
            until(lambda: ledger.lines("end", f"{queue.name}-{round_}"))  # noqa: B023
    assert len(ledger.lines("end")) == 18
    assert main(["check", "doctor", "--url", spread.url]) in (0, 1)
    assert worker.stop() == 0
    assert all(queue.admin.fsck() == [] for queue in queues)


def lines(worker, words):
    """Return the lines of the worker's log with these words."""
    return [line for line in worker.log.splitlines() if words in line]


@pytest.fixture
def away(spread):
    """away(): the third node doesn't answer; away.end(): it does again."""
    last = spread.nodes[2].process

    def freeze():
        last.send_signal(signal.SIGSTOP)

    freeze.end = lambda: last.send_signal(signal.SIGCONT)
    yield freeze
    freeze.end()


@pytest.mark.one_server
def test_queues_of_other_nodes_go_on_when_a_node_is_silent(
    spread, start, send, ledger, queues, away
):
    healthy, silent = queues[:4], queues[4:]
    worker = start("--processes", "2", "--lease", "6s", url=spread.url, queues=named(queues))
    send("gated", "long", to=healthy[0])
    until(lambda: ledger.lines("start", "long"))
    for queue in silent:
        send("quick", f"before-{queue.name}", to=queue)
    until(lambda: len(ledger.lines("end")) == 2)
    # Reported as well: otherwise their leases end, and they run again.
    until(lambda: all(queue.admin.counts().messages == 0 for queue in silent))

    away()
    [told] = until(lambda: lines(worker, "no answer from the server for"))
    assert "4 other queues continue" in told
    assert all(queue.name in told for queue in silent)
    for number in range(200):
        send("quick", f"meanwhile{number}", to=healthy[number % 4])
    until(lambda: len(ledger.lines("end")) == 202)
    # Renewed and confirmed for longer than its lease.
    enough = healthy[0].status("long").lock_expires_at + 6_000
    until(lambda: healthy[0].status("long").lock_expires_at > enough or ledger.lines("aborted"))
    assert not ledger.lines("aborted")
    ledger.gate("long").touch()
    until(lambda: ledger.lines("end", "long"))

    away.end()
    until(lambda: lines(worker, ": the server answers again after "))
    for queue in silent:
        send("quick", f"after-{queue.name}", to=queue)
    until(lambda: len(ledger.lines("end")) == 205)
    assert worker.stop() == 0
    assert len(lines(worker, "no answer from the server for")) == 1
    assert len(lines(worker, ": the server answers again after ")) == 1
    assert "Traceback" not in worker.log
    assert all(queue.admin.fsck() == [] for queue in queues)


@pytest.mark.one_server
def test_queues_of_other_nodes_go_on_when_a_node_is_gone_for_good(
    spread, start, send, ledger, queues
):
    worker = start("--processes", "1", "--lease", "3s", url=spread.url, queues=named(queues))
    for queue in queues:
        send("quick", f"before-{queue.name}", to=queue)
    until(lambda: len(ledger.names("end")) == 6)
    # Reported as well: otherwise the worker, as it leaves, waits for that node.
    until(lambda: all(queue.admin.counts().messages == 0 for queue in queues))
    spread.nodes[2].kill()
    for number in range(200):
        send("quick", f"meanwhile{number}", to=queues[number % 4])
    until(lambda: len(ledger.names("end")) == 206)
    until(lambda: lines(worker, "4 other queues continue"))
    assert worker.stop() == 0
    assert "Traceback" not in worker.log


@pytest.mark.one_server
def test_outcome_is_told_once_its_node_is_back_and_others_run_meanwhile(
    spread, start, send, ledger, queues, away
):
    """One child: it can't wait for the one node and serve the others at the same time."""
    worker = start(
        "--processes",
        "1",
        "--lease",
        "100s",
        "--prefetch",
        "4",
        url=spread.url,
        queues=named(queues),
    )
    here, there = queues[0], queues[4]
    send("gated", "long", to=there)
    for number in range(3):
        send("again", f"again{number}", 1, to=there)
    until(lambda: ledger.lines("start", "long"))
    away()
    ledger.gate("long").touch()
    until(lambda: ledger.lines("end", "long"))
    for number in range(20):
        send("quick", f"meanwhile{number}", to=here)
    until(lambda: len(ledger.lines("end")) == 21)

    away.end()
    until(lambda: len(ledger.lines("end")) == 24)
    until(lambda: there.admin.counts().messages == 0)
    assert worker.stop() == 0
    assert len(ledger.lines("end", "long")) == 1
    # One run that asks to be retried and the one after it, and no third.
    assert len(ledger.lines("start")) == 1 + 2 * 3
    assert there.admin.fsck() == []
    assert "crashed" not in worker.log
