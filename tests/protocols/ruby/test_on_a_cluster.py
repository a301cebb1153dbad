"""Where a Ruby list and the jobq queue are on different nodes."""

from __future__ import annotations

import json

import pytest

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.protocols.ruby import SidekiqQueue
from jobq.protocols.ruby.claims import Claims
from jobq.protocols.ruby.intake import Intake
from jobq.protocols.ruby.key_names import RubyQueueName
from jobq.protocols.ruby.retries import RubyJobCounts
from jobq.protocols.ruby.scheduled import promote
from jobq.protocols.ruby.settings import IntakeSettings
from jobq.queue.partitioning import nodes_of, partition
from jobq.queue.queue import Queue
from tests.client.deployments import Spread
from tests.conftest import binary


@pytest.fixture
def cluster(server, tmp_path):
    deployment = Spread(binary(server.kind), tmp_path)
    client = connect(settings=ServerSettings(url=deployment.url))
    yield client
    client.close()
    deployment.close()


def test_jobs_go_from_slot_to_slot_and_each_once(cluster, fed_worker, run_all):
    names = [f"q{number}" for number in range(6)]
    ruby_queues = tuple(RubyQueueName("sidekiq", "", name) for name in names)
    for name in names:
        SidekiqQueue(name, cluster).push_many("HardWorker", [[n] for n in range(20)])
    later = SidekiqQueue("q0", cluster).push("HardWorker", [1], at=2_000_000_000)
    cluster.command(
        "ZINCRBY", "schedule", -1_999_999_999, *cluster.command("ZRANGE", "schedule", 0, -1)
    )
    # A holder that died after the list was emptied.
    dead = Claims(cluster, ruby_queues[3])
    claim = dead.take(5)
    cluster.command("ZADD", dead._claims, 0, claim.claim_id)
    Intake(
        cluster,
        cluster,
        IntakeSettings(ruby_queues=ruby_queues, ruby_dead=True),
        fed_worker,
        RubyJobCounts(),
    )._round()
    one = Intake(
        cluster, cluster, IntakeSettings(ruby_queues=ruby_queues), fed_worker, RubyJobCounts()
    )
    one._round()
    ran = {name: run_all(Queue(name, cluster)) for name in names}
    assert [len(set(ran[name])) for name in names] == [21, 20, 20, 20, 20, 20]
    assert all(len(set(mids)) == len(mids) for mids in ran.values())
    assert later in ran["q0"]


def test_jobs_reach_partitions_of_other_nodes_and_each_once(cluster, fed_worker, run_all):
    queue = Queue("q0", cluster)
    known = partition(cluster, "q0", 4)
    assert len(set(nodes_of(cluster, known.newest.names("q0")))) > 1
    pushed = SidekiqQueue("q0", cluster).push_many("HardWorker", [[n] for n in range(40)])
    jobs = cluster.command("LRANGE", "queue:q0", 0, -1)
    cluster.command("LPUSH", "queue:q0", *jobs[:10])  # pushed again by a client that saw no reply
    place = RubyQueueName("sidekiq", "", "q0")
    claim = Claims(cluster, place).take(5)  # its holder dies
    cluster.command("ZADD", Claims(cluster, place)._claims, 0, claim.claim_id)
    settings = IntakeSettings(ruby_queues=(place,), ruby_dead=True)

    def carry() -> None:
        for _ in range(2):
            Intake(cluster, cluster, settings, fed_worker, RubyJobCounts())._round()

    carry()
    ran = {each.name: run_all(each) for each in queue.partitions()}
    assert sorted(mid for mids in ran.values() for mid in mids) == sorted(pushed)
    assert sum(map(bool, ran.values())) > 1

    SidekiqQueue("q0", cluster).push_many("HardWorker", [[n] for n in range(40)])
    carry()
    partition(cluster, "q0", 3)
    later = SidekiqQueue("q0", cluster).push_many("HardWorker", [[n] for n in range(40)])
    carry()
    earlier = [mid for each in queue.partitions() for mid in run_all(each)]
    assert len(set(earlier)) == len(earlier) == 80
    assert set(later) < set(earlier)
    assert cluster.command("LLEN", "queue:q0") == 0


def test_due_job_is_pushed_once_when_it_couldnt_be_removed_at_first(cluster, monkeypatch):
    SidekiqQueue("default", cluster).push("HardWorker", [1], at=2_000_000_000)
    [job] = cluster.command("ZRANGE", "schedule", 0, -1)
    cluster.command("ZADD", "schedule", 1, job)
    real = cluster.command
    with monkeypatch.context() as dying:
        dying.setattr(cluster, "command", lambda *args: None if args[0] == "ZREM" else real(*args))
        promote(cluster, "")
    assert cluster.command("ZCARD", "schedule") == 1
    promote(cluster, "")
    assert cluster.command("ZCARD", "schedule") == 0
    [pushed] = cluster.command("LRANGE", "queue:default", 0, -1)
    assert json.loads(pushed)["args"] == [1]


def test_same_job_scheduled_again_soon_is_pushed_again(cluster):
    for at in (1, 2):
        cluster.command("ZADD", "schedule", at, b'{"class":"A","args":[],"jid":"j","queue":"q"}')
        promote(cluster, "")
    assert cluster.command("LLEN", "queue:q") == 2
    assert cluster.command("ZCARD", "schedule") == 0
