"""Partitions on a Cluster of three masters, in a change during which the test kills a worker."""

from __future__ import annotations

import signal

import pytest

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.queue.partitioning import partition
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
