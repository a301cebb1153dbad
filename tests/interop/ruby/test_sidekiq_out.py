"""Jobs that Python pushed, as the real Sidekiq sees and runs them."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from jobq.errors import CodecError, ConfigError
from jobq.protocols.ruby import SidekiqQueue
from tests.interop.ruby.conftest import until


def test_sidekiq_runs_what_was_pushed(ruby, sidekiq, ledger):
    jid = SidekiqQueue("default").push(
        "HardWorker", [str(ledger.path), "a", "run", 1, {"x": [None]}]
    )
    assert re.fullmatch("[0-9a-f]{24}", jid)
    sidekiq("-q", "default")
    [ran] = until(lambda: ledger.lines())
    assert (ran["mid"], ran["by"], ran["rest"]) == (jid, "sidekiq", [1, {"x": [None]}])


def test_sidekiq_runs_a_thousand_that_were_pushed_at_once(ruby, sidekiq, ledger):
    arguments = ([str(ledger.path), str(n)] for n in range(1200))
    jids = SidekiqQueue("default").push_many("HardWorker", arguments)
    sidekiq("-q", "default")
    until(lambda: len(ledger.lines()) == 1200)
    assert sorted(line["mid"] for line in ledger.lines()) == sorted(jids)


@pytest.mark.parametrize("version", [6, 7])
def test_sidekiqs_api_shows_what_was_pushed(ruby, version):
    before = time.time()
    queue = SidekiqQueue("low", version=version)
    jid = queue.push("Mail::Sender", [1], retry=5, tags=["a", "b"], retry_queue="later")
    assert ruby("queues") == ["low"]
    [shown] = ruby("queue", name="low")
    assert (shown["jid"], shown["class"], shown["args"]) == (jid, "Mail::Sender", [1])
    assert shown["tags"] == ["a", "b"]
    assert (shown["item"]["retry"], shown["item"]["retry_queue"]) == (5, "later")
    assert before <= shown["created_at"] <= shown["enqueued_at"] <= time.time() + 1


def test_scheduled_job_is_in_sidekiqs_schedule_until_it_is_due(ruby, sidekiq, ledger):
    at = time.time() + 3600
    jid = SidekiqQueue("default").push("HardWorker", [str(ledger.path), "a"], at=at)
    [shown] = ruby("set", name="schedule")
    assert (shown["jid"], shown["queue"]) == (jid, "default")
    assert shown["at"] == pytest.approx(at)
    assert "enqueued_at" not in shown["item"]
    assert ruby("add_to_queue", name="schedule") == 1
    sidekiq("-q", "default")
    assert until(lambda: ledger.lines())[0]["mid"] == jid


def test_failures_go_by_sidekiqs_rules(ruby, sidekiq, ledger):
    SidekiqQueue("default").push("HardWorker", [str(ledger.path), "a", "fail"], retry=0)
    sidekiq("-q", "default")
    [died] = until(lambda: ruby("set", name="dead"))
    assert died["item"]["error_class"] == "ArgumentError"


def test_namespaced_job_is_where_redis_namespace_looks(redis, client):
    SidekiqQueue("default", namespace="app").push("HardWorker", [])
    assert redis.llen("app:queue:default") == 1
    assert redis.smembers("app:queues") == {b"default"}


def test_push_from_a_coroutine(ruby, client):
    jid = asyncio.run(SidekiqQueue("default").apush("HardWorker", [1]))
    assert ruby("queue", name="default")[0]["jid"] == jid


@pytest.mark.parametrize(
    ("given", "options", "error"),
    [(("hard worker", []), {}, "is not a class name"), (("HardWorker", "ab"), {}, "not a list of arguments"),
     (("HardWorker", [1]), {"retry": -1}, "retry=-1"), (("HardWorker", [1]), {"every": 1}, "no option 'every'"),
     (("HardWorker", [1]), {"at": 1, "delay": 1}, "delay=1 and at=1 contradict")],
)  # fmt: skip
def test_push_is_refused_and_changes_nothing_when_it_makes_no_sense(
    redis, client, given, options, error
):
    with pytest.raises(ConfigError, match=error):
        SidekiqQueue("default").push(*given, **options)
    assert not redis.keys()


def test_push_is_refused_when_json_would_change_an_argument(redis, client):
    with pytest.raises(CodecError, match="set"):
        SidekiqQueue("default").push("HardWorker", [{1, 2}])
    assert not redis.keys()
