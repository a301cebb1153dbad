"""The share of a server's CPU that each queue takes, on real servers. The clock makes them as busy as a test says."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from jobq import Ending, Queue, connect
from jobq.errors import UnavailableError
from jobq.queue.server_load import LoadWatch, NodeLoad, QueueLoad, load_findings, steps

RECORD = "app.f\x1f1\x1f120\x1f110\x1f0\x1fworker:1\x1f\x1f"


def run(queue: Queue, number: int, batch: int) -> None:
    """Enqueue, start and end so many messages, in calls of a batch each."""
    for _ in range(number // batch):
        queue.enqueue_many([b"{}"] * batch)
    dequeued = queue.dequeue(batch)
    while dequeued and dequeued.messages:
        endings = [Ending(mid=m.mid, token=m.token, record=RECORD) for m in dequeued.messages]
        dequeued = queue.finish(endings, dequeue=batch).dequeued


@pytest.fixture
def watch(client: Any) -> Callable[..., LoadWatch]:
    """watch(work, busy=0.8): a watch of queues low and high, on a server that is as busy as that while `work` runs."""

    def make(work: Callable[[], object], busy: float = 0.8) -> LoadWatch:
        def now() -> float:
            info = dict(
                line.split(":", 1)
                for line in client.command("INFO", "cpu").decode().splitlines()
                if ":" in line
            )
            return (
                sum(float(info[f"used_cpu_{kind}_main_thread"]) for kind in ("user", "sys")) / busy
            )

        return LoadWatch(client, ["low", "high"], lambda seconds: work(), now)

    return make


def of(client: Any) -> tuple[Queue, Queue]:
    return Queue("low", client), Queue("high", client)


def test_load_names_the_queue_that_takes_most_of_a_core(client: Any, watch: Any) -> None:
    low, high = of(client)

    def work() -> None:
        run(low, 900, 50)
        run(high, 100, 50)

    [load] = watch(work).measure()
    assert load.busy == pytest.approx(0.8, rel=0.1)
    assert [each.name for each in load.queues] == ["low", "high"]
    assert load.queues[0].share == pytest.approx(9 * load.queues[1].share)
    assert load.queues[0].events == 1.0
    [finding] = load_findings(watch(work))
    assert finding.level == "warn" and "queue low takes about" in finding.value
    assert "enqueue_many" not in finding.remedy
    assert "jobq events level off --queues low" in finding.remedy


def test_load_advises_batches_when_each_message_is_a_call(client: Any, watch: Any) -> None:
    low, _ = of(client)
    low.admin.events_level("off")
    [finding] = load_findings(watch(lambda: run(low, 200, 1)))
    assert finding.remedy.startswith("use enqueue_many and larger jobs: 1.0 calls per message")
    assert "events level" not in finding.remedy


def test_load_of_other_commands_is_left_out_of_queues(client: Any, watch: Any) -> None:
    low, _ = of(client)

    def work() -> None:
        run(low, 20, 10)
        for _ in range(400):
            client.command("SET", "of another application", b"x")

    [load] = watch(work, busy=0.9).measure()
    assert load.others > sum(each.share for each in load.queues)
    [finding] = load_findings(watch(work, busy=0.9))
    assert finding.level == "warn" and "low about" in finding.value
    assert "move other queues and applications" in finding.remedy


def test_quiet_server_is_ok_without_looking_at_queues(client: Any, watch: Any) -> None:
    low, _ = of(client)
    glances: list[int] = []

    def work() -> None:
        run(low, 10, 1)
        glances.append(1)

    [finding] = load_findings(watch(work, busy=0.2))
    assert finding.level == "ok" and re.search("2[0-4]% busy", finding.value)
    assert len(glances) == 1


def test_load_is_unknown_when_a_server_shows_its_counters_only_once(
    client: Any, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = [True]
    command = client.command

    def refused_once(*words: Any) -> Any:
        if words[0] == "INFO" and silent and silent.pop():
            raise UnavailableError("no answer")
        return command(*words)

    monkeypatch.setattr(client, "command", refused_once)
    [finding] = load_findings(watch(lambda: None))
    assert finding.level == "warn" and "unknown" in finding.value and "no answer" in finding.value


def test_shares_of_queues_are_told_when_no_queue_takes_half_of_a_core(
    client: Any, watch: Any
) -> None:
    low, high = of(client)

    def work() -> None:
        run(low, 150, 50)
        run(high, 100, 50)

    [finding] = load_findings(watch(work, busy=0.4))
    assert finding.level == "ok" and not finding.remedy
    busy, *shares = map(int, re.findall(r"(\d+)%", finding.value)[:3])
    assert "% busy: low about" in finding.value and ", high about" in finding.value
    assert busy >= sum(shares) and shares[0] > shares[1] > 0


def test_load_is_unknown_when_the_user_may_not_ask(client: Any, redis: Any) -> None:
    redis.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">x", "~*", "+@all", "-info")
    try:
        poor = connect(client.url.replace("://", "://poor:x@"))
        [finding] = load_findings(LoadWatch(poor, ["low"], lambda seconds: None))
        assert finding.level == "warn" and "unknown" in finding.value
    finally:
        redis.execute_command("ACL", "DELUSER", "poor")


def test_node_of_a_cluster_is_named_and_not_told_to_become_one() -> None:
    load = NodeLoad("10.0.0.1:6379", 0.9, 0.1, 0.02, [QueueLoad("low", 0.7, 30_000.0, 0.0)])
    assert list(steps(load)) == [
        "move other queues and applications, about 20% of a core, to a server of their own",
        "distribute the queue over the nodes: jobq partitions low 8",
    ]
    load = load._replace(queues=[QueueLoad("low/3", 0.9, 30_000.0, 0.0)])
    assert list(steps(load)) == [
        "give queue low more partitions: jobq partitions low shows how many it has"
    ]
