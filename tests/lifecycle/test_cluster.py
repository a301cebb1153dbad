"""A worker on a Cluster: queues in different slots, woken on one connection each."""

from __future__ import annotations

import pytest

from jobq.cli import main
from jobq.config import ServerSettings
from jobq.engine.connection import connect
from jobq.engine.queue import Queue
from tests.conftest import binary
from tests.engine.deployments import Spread
from tests.lifecycle.conftest import until


@pytest.fixture
def spread(server, tmp_path):
    deployment = Spread(binary(server.kind), tmp_path)
    yield deployment
    deployment.close()


def test_idle_worker_is_woken_for_queues_on_every_node(spread, start, send, ledger):
    client = connect(settings=ServerSettings(url=spread.url))
    names = [f"queue{number}" for number in range(6)]
    queues = [Queue(name, client) for name in names]
    worker = start("--processes", "1", url=spread.url, queues=",".join(names))
    for round_ in range(3):
        for queue in queues:
            send("quick", f"{queue.name}-{round_}", to=queue)
            until(lambda: ledger.lines("end", f"{queue.name}-{round_}"))  # noqa: B023
    assert len(ledger.lines("end")) == 18
    assert main(["doctor", "--url", spread.url]) in (0, 1)
    assert worker.stop() == 0
    assert all(queue.fsck() == [] for queue in queues)
    client.close()
