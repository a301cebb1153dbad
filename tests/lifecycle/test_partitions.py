"""Workers serve the partitions of their queues, and follow changes of their number."""

from __future__ import annotations

import pytest

from jobq.queue import presence
from jobq.queue.partitioning import left_in, partition
from jobq.queue.partitions import read_map
from jobq.queue.queue import Queue
from tests.lifecycle.jobs_at_work import quick
from tests.waiting import until

pytestmark = pytest.mark.one_server


def test_a_worker_serves_the_partitions_that_are_there_when_it_starts(start, client, send, ledger):
    partition(client, "low", 3)
    for number in range(20):
        send("quick", f"m{number}")

    worker = start("--processes", "1")

    until(lambda: len(ledger.names("end")) == 20)
    assert worker.stop() == 0


def test_a_worker_follows_when_the_number_of_partitions_changes(
    start, client, send, ledger, server
):
    worker = start("--processes", "1", "--lease", "3s")
    send("quick", "first")
    until(lambda: ledger.lines("end", "first"))

    for count, total in ((2, 11), (4, 21)):
        partition(client, "low", count)
        for number in range(10):
            send("quick", f"{count}-{number}")
        until(lambda total=total: len(ledger.names("end")) == total)

    until(lambda: all(epoch.drained for epoch in read_map(client, "low").epochs[:-1]))
    assert all(not left_in(client, name).messages for name in ("low", "low/0", "low/1"))
    now = ["low", *read_map(client, "low").newest.names("low")]
    until(lambda: [*presence.workers(client)[0].queues] == now)
    send("quick", "last")  # a child that waits already begins again
    if server.kind == "valkey":  # Redis has this figure since 7.2
        waits = f"total_blocking_keys:{len(now)}\r".encode()
        until(lambda: waits in client.command("INFO", "clients"))
    assert "no longer serves low/0, low/1: drained" in worker.log
    assert worker.stop() == 0
    assert len(ledger.lines("end")) == 22


def test_a_receipt_reads_the_result_when_its_queue_is_partitioned(start, client, ledger):
    partition(client, "low", 2)
    Queue("low", client).enqueue(b"{}")
    job = quick.options(client=client, result_ttl="1m")
    start("--processes", "1")

    receipt = job.enqueue(str(ledger.path), "a")
    many = job.enqueue_many([(str(ledger.path), f"b{number}") for number in range(3)])

    assert receipt.partition.startswith("low/")
    assert receipt.result(timeout=30) is None
    assert [one.result(timeout=30) for one in many] == [None] * 3
