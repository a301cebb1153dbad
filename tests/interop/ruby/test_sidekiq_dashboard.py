"""A jobq worker as Sidekiq's API, which its dashboard shows, lists it."""

from __future__ import annotations

import pytest

from tests.interop.ruby.conftest import until

#: What Ruby and Node do is the same on each server; test_sidekiq_out tries both.
pytestmark = pytest.mark.one_server


def test_worker_is_listed_while_it_runs(ruby, worker, ledger):
    one = worker("--sidekiq", "default,mailers", "--name", "blue")
    [shown] = until(lambda: ruby("processes"))
    assert shown["queues"] == ["default", "mailers"]
    assert (shown["tag"], shown["labels"], shown["pid"]) == ("blue", ["jobq"], one.process.pid)
    assert (shown["concurrency"], shown["busy"], shown["stopping"]) == (2, 0, False)
    assert shown["rss"] > 10_000
    assert one.stop() == 0
    assert ruby("processes") == []


def test_entry_ends_by_itself_when_the_worker_was_killed(ruby, worker, redis):
    one = worker("--sidekiq", "default")
    [shown] = until(lambda: ruby("processes"))
    one.kill()
    assert 0 < redis.ttl(shown["identity"]) <= 60
    redis.delete(shown["identity"])
    assert ruby("processes") == []


def test_running_job_is_shown(ruby, worker, ledger):
    jid = ruby("async", args=[str(ledger.path), "a", "wait"])
    worker("--sidekiq", "default")
    [[process, _, work]] = until(lambda: ruby("work"))
    assert process == ruby("processes")[0]["identity"]
    assert (work["queue"], work["payload"]["jid"]) == ("default", jid)
    assert work["payload"]["args"] == [str(ledger.path), "a", "wait"]
    assert ruby("stats")["busy"] == 1
    ledger.open_gate("a")
    until(lambda: not ruby("work"))


def test_web_interface_shows_worker_job_and_dead(ruby, worker, ledger):
    ruby("async", args=[str(ledger.path), "broken", "fail"], options={"retry": 0})
    jid = ruby("async", args=[str(ledger.path), "a", "wait"])
    one = worker("--sidekiq", "default", "--name", "blue", "--ruby-dead")
    until(lambda: ruby("work") and ruby("set", name="dead"))
    busy = ruby("page", path="/busy")
    assert busy["status"] == 200
    assert "blue" in busy["body"] and jid in busy["body"] and str(one.process.pid) in busy["body"]
    morgue = ruby("page", path="/morgue")
    assert morgue["status"] == 200 and "ValueError: broken isn" in morgue["body"]
    ledger.open_gate("a")


def test_counts_are_added_to_sidekiqs(ruby, worker, ledger):
    ruby("bulk", fields={"args": [[str(ledger.path), "x"]] * 30})
    ruby("async", args=[str(ledger.path), "b", "fail"], options={"retry": 0})
    one = worker("--sidekiq", "default")
    until(lambda: len(ledger.lines()) == 30 and ledger.lines("fail"))
    one.stop()
    stats = ruby("stats")
    assert (stats["processed"], stats["failed"]) == (31, 1)


def test_quiet_button_ends_the_taking_and_stop_button_the_worker(ruby, worker, ledger):
    one = worker("--sidekiq", "default")
    until(lambda: ruby("processes"))
    ruby("quiet")
    until(lambda: ruby("processes")[0]["stopping"])
    ruby("async", args=[str(ledger.path), "a"])
    ruby("stop")
    assert one.process.wait(200) == 0
    assert ruby("stats")["enqueued"] == 1
    assert ruby("processes") == []
