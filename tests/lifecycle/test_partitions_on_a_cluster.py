"""Partitions on a Cluster of three masters, in a change during which the test kills a worker."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from redis.crc import key_slot

from jobq.cli import main
from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.errors import UnavailableError
from jobq.queue.partitioning import nodes_of, partition
from jobq.queue.partitions import read_map
from jobq.queue.queue import Queue
from tests.client.deployments import Spread
from tests.conftest import binary
from tests.lifecycle.conftest import until

pytestmark = pytest.mark.one_server


@pytest.fixture
def spread(server, tmp_path):
    deployment = Spread(binary(server.kind), tmp_path)
    yield deployment
    deployment.close()


@pytest.fixture
def cluster(spread):
    client = connect(settings=ServerSettings(url=spread.url))
    yield client
    client.close()


def test_every_job_runs_on_a_cluster_when_the_number_changes_and_workers_are_killed(
    start, spread, cluster, send, ledger
):
    queue, expected = Queue("low", cluster), set[str]()
    for count in (0, 8, 3, 16):
        if count:
            partition(cluster, "low", count)
        worker = start("--processes", "2", "--lease", "3s", url=spread.url)
        for number in range(20):
            send("quick", f"{count}-{number}", to=queue)
            expected.add(f"{count}-{number}")
        until(lambda count=count: any(one.startswith(f"{count}-") for one in ledger.names("end")))
        worker.send(signal.SIGKILL)
        worker.wait()
    last = start("--processes", "1", "--lease", "3s", url=spread.url)

    until(lambda: ledger.names("end") == expected)

    homes = {
        cluster.topology.locate(Queue(name, cluster).wake_key)
        for name in read_map(cluster, "low").newest.names("low")
    }
    assert len(homes) == 3
    assert last.stop() == 0


@pytest.mark.long
def test_other_partitions_go_on_when_a_node_does_not_answer(
    start, spread, cluster, send, ledger, capsys, monkeypatch
):
    """Messages of its partitions are refused or wait; a change during that time continues later."""
    for node in spread.nodes:
        node.redis.config_set("cluster-require-full-coverage", "no")
    queue = Queue("low", cluster)
    known = partition(cluster, "low", 6)
    homes = Counter(nodes_of(cluster, known.newest.names("low")))
    assert sorted(homes.values()) == [2, 2, 2]
    silent = next(
        name
        for name in known.newest.names("low")
        if nodes_of(cluster, [name]) != nodes_of(cluster, ["low"])
    )
    worker = start("--processes", "2", "--lease", "3s", url=spread.url)
    send("quick", "first", to=queue)
    until(lambda: ledger.names("end") == {"first"})
    until(lambda: read_map(cluster, "low").epochs[0].drained)
    [(_, port)] = nodes_of(cluster, [silent])
    away = next(node for node in spread.nodes if node.port == port)
    hasty = connect(settings=ServerSettings(url=spread.url, patience_s=0.2, socket_timeout_s=0.5))

    away.process.send_signal(signal.SIGSTOP)
    accepted, refused, impatient = set(), set(), Queue("low", hasty)
    for number in range(24):
        try:
            send("quick", f"m{number}", to=impatient)
            accepted.add(f"m{number}")
        except UnavailableError:
            refused.add(f"m{number}")
    assert accepted and refused
    until(lambda: ledger.names("end") == {"first", *accepted})
    with pytest.raises(UnavailableError):
        partition(hasty, "low", 3)
    monkeypatch.setenv("JOBQ_PATIENCE", "0.2")
    assert main(["partitions", "low", "--url", spread.url, "--json"]) == 3
    monkeypatch.undo()
    shown = capsys.readouterr()
    names = read_map(cluster, "low").names()
    there = dict(zip(names, nodes_of(cluster, names), strict=True))
    gone = {name for name in names if there[name] == there[silent]}
    assert {name for name in names if f'"{name}"' in shown.out} == {*names} - gone
    assert all(f"partition {name}:" in shown.err for name in gone)

    away.process.send_signal(signal.SIGCONT)
    hasty.close()
    partition(cluster, "low", 3)
    for mid in refused:
        send("quick", mid, to=queue)
    until(lambda: ledger.names("end") == {"first", *accepted, *refused})
    until(lambda: all(epoch.drained for epoch in read_map(cluster, "low").epochs[:-1]))
    assert worker.stop() == 0
    assert "Traceback" not in worker.log

    assert main(["partitions", "low", "--url", spread.url]) == 0
    assert "more than its share" not in capsys.readouterr().err
    taker, *givers = spread.nodes
    for giver in givers:
        for name in read_map(cluster, "low").newest.names("low"):
            slot = key_slot(Queue(name, cluster).wake_key.encode())
            if giver.redis.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot):
                spread.move(slot, giver, taker)
    assert main(["partitions", "low", "--url", spread.url]) == 0
    warned = f"node 127.0.0.1:{taker.port} has 3 of 3 partitions"
    assert warned in capsys.readouterr().err
