"""Jobs that Ruby pushed with the real Sidekiq client run in a jobq worker."""

from __future__ import annotations

import json

import pytest

from jobq.jobs.codec import read_refusal
from jobq.protocols.ruby import SidekiqQueue
from tests.interop.ruby.conftest import until

#: What Ruby and Node do is the same on each server; test_sidekiq_out tries both.
pytestmark = pytest.mark.one_server


def test_job_runs_under_its_jid_when_ruby_pushed_it(ruby, worker, ledger):
    jid = ruby("async", args=[str(ledger.path), "a"], options={"tags": ["urgent"]})
    worker("--sidekiq", "default")
    [ran] = until(lambda: ledger.lines())
    assert (ran["mid"], ran["queue"], ran["by"]) == (jid, "default", "jobq")
    assert json.loads(ran["headers"]["ruby-tags"]) == ["urgent"]
    assert json.loads(ran["headers"]["ruby-fields"])["jid"] == jid
    assert until(lambda: ruby("queue", name="default") == [])


def test_job_runs_at_once_when_the_worker_sleeps(ruby, worker, ledger):
    worker("--sidekiq", "default")
    until(lambda: ruby("processes"))
    for name in "abc":
        ruby("async", args=[str(ledger.path), name])
        until(lambda name=name: ledger.lines(name=name))


def test_scheduled_job_runs_when_it_is_due_and_not_before(ruby, worker, ledger):
    ruby("in", seconds=0.5, args=[str(ledger.path), "soon"])
    ruby("in", seconds=3600, args=[str(ledger.path), "late"])
    worker("--sidekiq", "default")
    until(lambda: ledger.lines(name="soon"))
    [late] = ruby("set", name="schedule")
    assert late["args"][1] == "late"
    assert ruby("stats")["enqueued"] == 0


def test_due_job_of_another_queue_goes_to_its_list(ruby, worker, ledger):
    ruby("in", seconds=0.1, args=[str(ledger.path), "other"], options={"queue": "mailers"})
    worker("--sidekiq", "default")
    [moved] = until(lambda: ruby("queue", name="mailers"))
    assert moved["args"][1] == "other"
    assert moved["enqueued_at"] > moved["created_at"]
    assert "mailers" in ruby("queues")
    assert not ledger.lines()


def test_each_job_runs_once_when_ruby_pushed_hundreds_at_a_time(ruby, worker, ledger):
    jids = ruby("bulk", fields={"args": [[str(ledger.path), str(n)] for n in range(700)]})
    worker("--sidekiq", "default", "--ruby-backlog", "50")
    until(lambda: len(ledger.lines()) >= 700)
    assert sorted(line["mid"] for line in ledger.lines()) == sorted(jids)


def test_backlog_of_slow_jobs_stays_where_sidekiqs_api_sees_it(ruby, worker, ledger, default):
    ruby("bulk", fields={"args": [[str(ledger.path), str(n), "wait"] for n in range(300)]})
    worker("--sidekiq", "default")
    until(lambda: len(ledger.lines("start")) == 2 and default.admin.counts().ready)
    assert len(ruby("queue", name="default")) >= 270
    assert default.admin.counts().messages <= 30


def test_queue_with_a_colon_is_the_same_for_both(ruby, sidekiq, client, worker, ledger, tmp_path):
    ruby("async", args=[str(ledger.path), "in"], options={"queue": "mail:low"})
    one = worker("--sidekiq", "mail:low,3", "--sidekiq", "default")
    [ran] = until(lambda: ledger.lines(name="in"))
    assert (ran["by"], ran["queue"]) == ("jobq", "mail:low")
    assert one.stop() == 0
    SidekiqQueue("mail:low", client).push("HardWorker", [str(ledger.path), "out"])
    assert [job["args"][1] for job in ruby("queue", name="mail:low")] == ["out"]
    sidekiq("-q", "mail:low")
    [ran] = until(lambda: ledger.lines(name="out"))
    assert ran["by"] == "sidekiq"


def test_namespace_of_redis_namespace_is_the_same_for_both(
    namespaced, client, worker, ledger, redis
):
    namespaced("async", args=[str(ledger.path), "in"], options={"queue": "mail:low"})
    one = worker("--sidekiq", "mail:low", "--sidekiq-namespace", "my:app")
    until(lambda: ledger.lines(name="in"))
    until(lambda: namespaced("stats")["processed"] == 1)
    assert one.stop() == 0
    SidekiqQueue("mail:low", client, namespace="my:app").push(
        "HardWorker", [str(ledger.path), "out"]
    )
    assert [job["args"][1] for job in namespaced("queue", name="mail:low")] == ["out"]
    assert not redis.exists("queues", "queue:mail:low")


def test_retry_goes_to_the_queue_that_the_job_names(ruby, worker, ledger):
    ruby("async", args=[str(ledger.path), "a", "fail"], options={"retry": 5, "retry_queue": "slow"})
    worker("--sidekiq", "default", "--sidekiq", "slow")
    [waits] = until(lambda: ruby("set", name="retry"))
    assert (waits["queue"], waits["item"]["retry_count"]) == ("slow", 0)
    assert waits["item"]["error_message"].startswith("a isn't ready")
    ledger.open_gate("a")
    assert ruby("reschedule", name="retry") == 1
    [ran] = until(lambda: ledger.lines(name="a"))
    assert ran["queue"] == "slow"


def test_equal_jobs_run_each(ruby, worker, ledger):
    ruby("bulk", fields={"args": [[str(ledger.path), "same"]] * 20})
    worker("--sidekiq", "default")
    until(lambda: len(ledger.lines()) >= 20)
    assert len({line["mid"] for line in ledger.lines()}) == 20


def test_job_is_dead_after_as_many_retries_as_ruby_said(ruby, worker, ledger, default):
    jid = ruby("async", args=[str(ledger.path), "a", "fail"], options={"retry": 2})
    worker("--sidekiq", "default")
    [died] = until(lambda: default.admin.dead())
    assert died.mid == jid
    assert died.reason.startswith("ValueError: a isn't ready (attempt 3 of 3)")
    assert len(ledger.lines("fail")) == 3
    assert ruby("set", name="dead") == []


def test_job_isnt_retried_when_ruby_said_never(ruby, worker, ledger, default):
    ruby("async", args=[str(ledger.path), "a", "fail"], options={"retry": False})
    worker("--sidekiq", "default", "--ruby-dead")
    until(lambda: default.admin.dead())
    assert len(ledger.lines("fail")) == 1


def test_dead_job_is_in_sidekiqs_dead_set_and_runs_again_when_retried_there(
    ruby, worker, ledger, default
):
    jid = ruby("async", args=[str(ledger.path), "a", "fail"], options={"retry": 1, "tags": ["t"]})
    worker("--sidekiq", "default", "--ruby-dead")
    [shown] = until(lambda: ruby("set", name="dead"))
    assert (shown["jid"], shown["class"], shown["tags"]) == (jid, "HardWorker", ["t"])
    assert shown["args"] == [str(ledger.path), "a", "fail"]
    item = shown["item"]
    assert (item["error_class"], item["retry_count"]) == ("ValueError", 1)
    assert item["error_message"] == "a isn't ready (attempt 2 of 2)"
    assert item["failed_at"] > item["created_at"]
    ledger.open_gate("a")
    assert ruby("retry", name="dead") == 1
    [ran] = until(lambda: ledger.lines())
    assert ran["mid"] == jid
    assert ruby("set", name="dead") == []


def test_job_that_killed_its_processes_is_in_sidekiqs_dead_set_too(ruby, worker, ledger):
    jid = ruby("async", args=[str(ledger.path), "a", "crash"])
    worker("--sidekiq", "default", "--ruby-dead", "--crash-limit", "2")
    [shown] = until(lambda: ruby("set", name="dead"))
    assert shown["jid"] == jid
    assert len(ledger.lines("crash")) == 2


def test_job_goes_on_where_sidekiqs_retries_left_it(ruby, sidekiq, worker, ledger, default):
    jid = ruby("async", args=[str(ledger.path), "a", "fail"], options={"retry": 3})
    real = sidekiq("-q", "default")
    until(lambda: ruby("set", name="retry"))
    real.terminate()
    real.wait()
    ruby("reschedule", name="retry")
    worker("--sidekiq", "default")
    [died] = until(lambda: default.admin.dead())
    assert died.mid == jid
    by = [line["by"] for line in ledger.lines("fail")]
    assert by == ["sidekiq", "jobq", "jobq", "jobq"]


def test_unknown_class_waits_for_a_deploy(ruby, worker, ledger, default):
    jid = ruby("push", fields={"class": "Unheard", "args": [1], "queue": "default"})
    one = worker("--sidekiq", "default")
    until(lambda: default.status(jid).word == "queued-with-backoff")
    assert "no job 'Unheard' here" in one.log


def test_content_that_is_no_job_is_dead_with_the_reason_and_holds_nobody_up(
    ruby, redis, worker, ledger, default
):
    for broken in (b"{bad", b"[1]", b'{"class":"HardWorker"}', b'{"args":[]}', b"\xff\xfe"):
        redis.lpush("queue:default", broken)
    ruby("async", args=[str(ledger.path), "after"])
    one = worker("--sidekiq", "default")
    until(lambda: ledger.lines(name="after"))
    dead = until(lambda: len(found := default.admin.dead()) == 5 and found)
    assert {read_refusal(died.content).raw for died in dead} == {
        b"{bad", b"[1]", b'{"class":"HardWorker"}', b'{"args":[]}', b"\xff\xfe",
    }  # fmt: skip
    reasons = " ".join(died.reason for died in dead)
    assert "the job has no class" in reasons and "args of HardWorker are not a list" in reasons
    assert "the job has no class" in one.log
    assert "args of HardWorker are not a list" in one.log


def test_nothing_runs_that_names_no_ruby_class_and_deep_jobs_stop_nobody(
    ruby, redis, worker, ledger, default
):
    deep = "[" * 600 + "]" * 600
    inner = f'{{"job_class":"A","arguments":{deep}}}'
    redis.lpush(
        "queue:default", f'{{"class":"Sidekiq::ActiveJob::Wrapper","args":[{inner}],"jid":"d"}}'
    )
    redis.lpush(
        "queue:default", json.dumps({"job": "mail.welcome", "args": [str(ledger.path), "x"]})
    )
    ruby("async", args=[str(ledger.path), "after"])
    one = worker("--sidekiq", "default", "--ruby-dead")
    until(lambda: ledger.lines(name="after"))
    shown = until(lambda: len(found := ruby("set", name="dead")) == 2 and found)
    assert len(default.admin.dead()) == 2
    assert ledger.path.read_text().count("\n") == 1
    assert "message source" not in one.log
    reasons = " ".join(entry["item"]["error_message"] for entry in shown)
    assert "deeper than 100 levels, which is Ruby's own limit" in reasons
    assert "the job has no class" in reasons
    page = ruby("page", path="/morgue")
    assert page["status"] == 200
    assert "the job has no class" in page["body"]
    assert ruby("retry", name="dead") == 2
    until(lambda: len(default.admin.dead()) == 4)


def test_deep_values_and_long_numbers_run_or_are_refused_in_words(ruby, worker, ledger):
    def nested(levels):
        return [nested(levels - 1)] if levels else 1

    path = str(ledger.path)
    for name, values in {
        "deep": [nested(64)], "long": [2**64 - 1, -(2**63)], "deeper": [nested(90)], "longer": [2**64],
    }.items():  # fmt: skip
        ruby("async", args=[path, name, "run", *values])
    worker("--sidekiq", "default", "--ruby-dead")
    shown = until(lambda: len(found := ruby("set", name="dead")) == 2 and found)
    said = {entry["args"][1]: entry["item"]["error_message"] for entry in shown}
    assert "outside 64 bits" in said["longer"]
    assert "nests deeper than 64 levels" in said["deeper"]
    until(lambda: {line["name"] for line in ledger.lines()} == {"deep", "long"})


def test_jobs_of_one_jid_run_each_when_they_differ_and_once_when_they_are_equal(
    ruby, worker, ledger
):
    for name in ("a", "a", "b"):
        ruby(
            "push",
            fields={"class": "HardWorker", "args": [str(ledger.path), name], "jid": "j" * 24},
        )
    one = worker("--sidekiq", "default", "--burst")
    assert one.process.wait(200) == 0
    assert sorted(line["name"] for line in ledger.lines()) == ["a", "b"]
    assert "is already used by a job with another class or other arguments" in one.log


def test_job_that_no_queue_can_hold_is_kept_in_sidekiqs_dead_set(ruby, redis, worker, ledger):
    huge = [str(ledger.path), "huge", "run", "x" * 1_100_000]
    jid = ruby("async", args=huge)
    ruby("async", args=[str(ledger.path), "after"])
    worker("--sidekiq", "default")
    until(lambda: ledger.lines(name="after"))
    [kept] = until(lambda: ruby("set", name="dead"))
    assert (kept["jid"], kept["args"]) == (jid, huge)


def test_job_runs_under_the_name_that_a_table_maps(ruby, worker, ledger):
    ruby("push", fields={"class": "Welcome", "args": [str(ledger.path), "a"], "queue": "mail"})
    worker("--sidekiq", "mail", "--ruby-job", "Welcome=mail.welcome")
    until(lambda: ledger.lines("end en"))


def test_activejob_runs_with_its_keyword_arguments(ruby, worker, ledger):
    inner = {
        "job_class": "Welcome", "job_id": "1", "queue_name": "default",
        "arguments": [str(ledger.path), "a", {"locale": "de", "_aj_ruby2_keywords": ["locale"]}],
    }  # fmt: skip
    wrapper = "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper"
    fields = {"class": wrapper, "wrapped": "Welcome", "args": [inner], "queue": "default"}
    ruby("push", fields=fields)
    worker("--sidekiq", "default", "--ruby-job", "Welcome=mail.welcome")
    until(lambda: ledger.lines("end de"))


def test_burst_takes_everything_in_runs_it_and_leaves(ruby, worker, ledger):
    ruby("bulk", fields={"args": [[str(ledger.path), str(n)] for n in range(300)]})
    ruby("async", args=[str(ledger.path), "bad", "fail"], options={"retry": 0})
    one = worker("--sidekiq", "default", "--burst", "--ruby-dead")
    assert one.process.wait(200) == 0
    assert len(ledger.lines()) == 300
    assert len(ruby("set", name="dead")) == 1
    assert ruby("stats")["processed"] == 301
    assert ruby("processes") == []
