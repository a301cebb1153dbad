"""Rows go to the partitions of their queue."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.errors import KeyFullError
from jobq.pipeline.writing.delivery import Delivery, QueueSender
from jobq.pipeline.writing.rows import RowMessage
from jobq.queue.partitioning import partition
from jobq.queue.partitions import read_map
from jobq.queue.queue import Queue

pytestmark = pytest.mark.one_server
ROWS = [RowMessage("low", "", f"row {number}", b"{}") for number in range(100)]


def placed(client: Client) -> dict[str, set[str]]:
    """Return the mids that wait in each partition."""
    return {
        place.name: {one.mid for one in place.dequeue(1_000).messages}
        for place in Queue("low", client).alone()
    }


def test_rows_are_distributed_when_their_queue_is_partitioned(client: Client) -> None:
    partition(client, "low", 4)
    sender = QueueSender(client, "low", 1_000)
    sender.send(ROWS)
    sender.send(ROWS[:10])

    newest = read_map(client, "low").newest
    assert (sender.nadded, sender.npresent) == (100, 10)
    found = placed(client)
    assert sum(map(len, found.values())) == 100
    assert all(newest.name_for("low", mid) == name for name, mids in found.items() for mid in mids)


def test_rows_are_enqueued_once_when_the_number_changes_between_two_writes(client: Client) -> None:
    for count in (0, 4, 3):
        if count:
            partition(client, "low", count)
        delivery = Delivery(client, 30, 1_000)
        for row in ROWS[: 50 + 10 * count]:
            delivery.put(row)
        delivery.flush()

    assert (delivery.nadded, delivery.npresent) == (0, 80)
    mids = [mid for found in placed(client).values() for mid in found]
    assert len(mids) == len(set(mids)) == 90


def test_rows_have_their_times_when_they_go_to_partitions(client: Client) -> None:
    partition(client, "low", 2)
    now_ms = client.clock_ms()
    sender = QueueSender(client, "low", 0)
    sender.send([
        RowMessage("low", "", "now", b"{}"), RowMessage("low", "d60000", "delayed", b"{}"),
        RowMessage("low", f"a{now_ms + 90_000}", "later", b"{}"),
    ])  # fmt: skip

    queue = Queue("low", client)
    assert queue.status("now").word == "queued"
    assert queue.status("later").not_before == now_ms + 90_000
    assert 0 <= queue.status("delayed").not_before - now_ms - 60_000 <= client.clock_ms() - now_ms


def test_rows_of_a_full_line_let_others_pass_when_the_queue_is_partitioned(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition(client, "low", 4)
    queue, seen = Queue("low", client), list[str]()
    queue.rules(key_waiting=2)
    delivery = Delivery(client, 8, 1_000, "key")

    def work(_: Any) -> None:
        """Run messages in place of a pause."""
        for mids in placed(client).values():
            seen.extend(mids)
            queue.cancel(*mids)

    monkeypatch.setattr("jobq.pipeline.writing.delivery.sleep", work)
    for number in range(5):
        for key in ("a", "b", "c"):
            delivery.put(RowMessage("low", "", f"{key}{number}", b"{}", key))
    delivery.flush()
    work(None)

    assert sorted(seen) == sorted(f"{key}{number}" for number in range(5) for key in "abc")


def test_rows_are_counted_once_when_another_partition_refuses_rows_of_their_call(
    client: Client,
) -> None:
    newest = partition(client, "low", 2).newest
    free, full = (
        next(key for key in map(str, range(100)) if newest.name_for("low", key) == name)
        for name in ("low/0", "low/1")
    )
    Queue("low", client).rules(key_waiting=2)
    sender = QueueSender(client, "low", 1_000, "key")
    fits = RowMessage("low", "", "fits", b"{}", free)
    line = [RowMessage("low", "", f"m{number}", b"{}", full) for number in range(3)]

    with pytest.raises(KeyFullError):
        sender.send([fits, *line])
    sender.send([fits, *line[:2]])
    assert (sender.nadded, sender.npresent) == (3, 0)
    sender.send([fits])
    assert (sender.nadded, sender.npresent) == (3, 1)
