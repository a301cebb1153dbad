"""Draining a queue on Spark's executors: counts, what is left, executors that can't start or are lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from jobq.chaos.audit import Audit
from jobq.cli.lake_drain import environment
from jobq.config import ServerSettings
from jobq.errors import ConfigError, PipelineError
from jobq.pipeline import tether
from jobq.pipeline.drain import Drain, Wanted
from jobq.pipeline.drain_slot import Order, Slot, executor_of
from tests.lifecycle.conftest import ROOT, Ledger

MODULE = "tests.lifecycle.jobs_at_work"
#: Three JVMs start one after another; on a busy machine that takes its time.
DEADLINE_S = 400
#: Runs a slot as an executor's Python worker does, without a JVM.
ALONE = """
import json, sys
from jobq.pipeline.drain_slot import Order, Slot
order = json.loads(sys.argv[1])
print(json.dumps(Slot(Order(order[0], tuple(order[1]), order[2], tuple(order[3]), order[4])).run(0)))
"""


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path)


@pytest.fixture
def env(valkey):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS", "SENTRY"))}
    return {**kept, "JOBQ_URL": valkey.url, "LIFECYCLE_LOOP": "no", "PYTHONPATH": str(ROOT)}


@pytest.fixture
def send(valkey_queue, ledger):
    valkey_queue.events_level("all")
    time.sleep(0.003)

    def enqueue(job, *names, **options):
        for name in names:
            content = json.dumps({"job": job, "args": [str(ledger.path), name]}).encode()
            valkey_queue.enqueue(content, mid=name, **options)

    return enqueue


def until(holds, what="it didn't come to hold"):
    deadline = time.monotonic() + DEADLINE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return found


def args(module=MODULE, lease="15s", level="warning"):
    words = f"worker --burst --queues low --import {module} --processes 1 --lease {lease} --log-level {level}"
    return tuple(words.split())


def order(env, **more):
    return Order("d", args(**more), {"JOBQ_URL": env["JOBQ_URL"]}, (str(ROOT),), 0.0)


def begun(env, wanted, said=None):
    """A process that holds a slot, and what it started: the tether, the worker, its child."""
    process = subprocess.Popen(
        [sys.executable, "-c", ALONE, json.dumps(wanted)], env=env, cwd=ROOT,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said,
    )  # fmt: skip
    own = psutil.Process(process.pid)
    return process, until(lambda: len(found := own.children(recursive=True)) >= 3 and found)


def runs(process):
    try:
        return process.is_running() and process.status() != "zombie"
    except psutil.NoSuchProcess:
        return False


def gone(processes):
    return until(lambda: not any(map(runs, processes)))


def test_name_of_a_worker_tells_its_executor():
    assert executor_of("host/with:17/drain-1.3", "drain-1") == "host/with:17"
    assert executor_of("host:17/drain-2.3", "drain-1") == ""
    assert executor_of("host:4711", "drain-1") == ""


def test_environment_carries_keys_and_asked_variables_and_what_is_of_here_not(monkeypatch):
    monkeypatch.setenv("JOBQ_CODEC_KEYS", "a:secret")
    monkeypatch.setenv("JOBQ_DATA", "/here")
    monkeypatch.setenv("DATABASE_URL", "pg://")
    found = environment(ServerSettings(namespace="n"), "redis://:word@h", ["DATABASE_URL"])
    assert found["JOBQ_URL"] == "redis://:word@h"
    assert (found["JOBQ_NAMESPACE"], found["JOBQ_CODEC_KEYS"]) == ("n", "a:secret")
    assert found["DATABASE_URL"] == "pg://"
    assert "JOBQ_DATA" not in found
    with pytest.raises(ConfigError, match="--env MISSING"):
        environment(ServerSettings(), "redis://h", ["MISSING"])


def test_tether_holds_a_worker_without_loading_one():
    """Each executor has as many of them as workers."""
    ask = "import sys, jobq.pipeline.tether; print(*(n for n in sys.modules if n.startswith('jobq.')))"
    told = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True)
    loaded = {
        name for name in told.stdout.split() if name.startswith(("jobq.worker.", "jobq.engine"))
    }
    assert loaded == {"jobq.worker.exits", "jobq.worker.tie"}


def test_worker_ends_with_its_starter_and_gives_back_what_ran(env, send, valkey_queue, ledger):
    send("gated", "a", "b")
    process, found = begun(env, order(env))
    until(lambda: ledger.lines("start"))
    process.kill()
    process.communicate()
    gone(found)
    assert valkey_queue.counts().ready == 2, "nobody had to wait for a lease"
    for name in "ab":
        ledger.gate(name).touch()
    assert Slot(order(env)).run(1).code == 0
    result = Audit(valkey_queue).result()
    assert (result.accepted, result.finished, result.lost) == (2, 2, 0)


def test_what_ran_is_given_back_when_a_busy_machine_makes_one_signal_of_two(
    env, send, valkey_queue, ledger
):
    """The worker gets no turn while it is told to drain and to hurry."""
    send("gated", "a")
    process, found = begun(env, order(env, lease="1h"))
    until(lambda: ledger.lines("start"))
    worker = next(p for p in found if "worker" in p.cmdline() and "tether" not in str(p.cmdline()))
    worker.suspend()
    process.kill()
    process.communicate()
    time.sleep(10 * tether.POLL_S)
    worker.resume()
    gone(found)
    assert valkey_queue.counts().ready == 1


def test_worker_dies_with_its_tether_and_its_job_comes_back_by_the_lease(
    env, send, valkey_queue, ledger
):
    send("gated", "a")
    process, found = begun(env, order(env, lease="1s"))
    until(lambda: ledger.lines("start"))
    held_by = next(p for p in found if "jobq.pipeline.tether" in p.cmdline())
    held_by.kill()
    gone(found)
    process.communicate()
    assert process.returncode, "the executor hears that its worker wasn't ended"
    ledger.gate("a").touch()
    until(lambda: valkey_queue.collect() and valkey_queue.counts().ready)
    assert Slot(order(env)).run(1).code == 0
    result = Audit(valkey_queue).result()
    assert (result.accepted, result.finished, result.lost) == (1, 1, 0)


def test_worker_drains_when_the_time_is_over(env, send, valkey_queue, ledger, tmp_path):
    send("gated", "a", "b")
    end = time.time() + 20
    with (tmp_path / "said").open("wb") as said:
        process, _ = begun(env, order(env, level="info")._replace(until=end), said)
    until(lambda: ledger.lines("start"))
    until(lambda: "draining" in (tmp_path / "said").read_text())
    until(lambda: valkey_queue.counts().locked == 1, "the second one wasn't given back")
    ledger.gate("a").touch()
    assert json.loads(process.communicate()[0])[2] == 0
    counts = valkey_queue.counts()
    assert (counts.ready, counts.locked) == (1, 0)
    late = Slot(order(env)._replace(until=time.time() - 1)).run(0)
    assert late.code == 0
    assert valkey_queue.counts().ready == 1, "a worker started too late takes nothing"


def test_backlog_is_drained_and_counted_by_executor(spark, env, send, valkey_queue, monkeypatch):
    monkeypatch.chdir(ROOT)
    send("quick", *(f"q{n}" for n in range(200)))
    send("quick", "later", delay=600)
    content = json.dumps({"job": "nobody.knows.it"}).encode()
    valkey_queue.enqueue(content, mid="strange", durability="memory")
    wanted = Wanted(args(), {"JOBQ_URL": env["JOBQ_URL"], "LIFECYCLE_LOOP": "no"}, 2, 15.0)
    result = Drain(spark, [valkey_queue], wanted).run()
    assert sum(one.done for one in result.executors) == 200
    assert sum(one.retried for one in result.executors) >= 1, "whom no job is known for"
    assert result.failed == []
    assert result.uncounted == 0
    assert len(result.executors) == 1, "a local master is one executor"
    assert [(one.ready, one.delayed, one.locked) for one in result.left] == [(0, 2, 0)]
    assert Audit(valkey_queue).result().lost == 0


def test_modules_that_cannot_be_loaded_are_told_and_nothing_is_taken(
    spark, env, send, valkey_queue, tmp_path, monkeypatch
):
    (tmp_path / "broken_jobs.py").write_text("import nothing_like_that\n")
    monkeypatch.chdir(tmp_path)
    send("quick", "a")
    wanted = Wanted(args("broken_jobs"), {"JOBQ_URL": env["JOBQ_URL"]}, 2, 15.0)
    with pytest.raises(
        PipelineError, match=r"exit code 10.*nothing was taken.*No module named"
    ) as told:
        Drain(spark, [valkey_queue], wanted).run()
    assert "broken_jobs.py" in "".join(told.value.__notes__)
    assert valkey_queue.counts().ready == 1


def test_secrets_are_in_no_plan_and_no_setting(spark):
    order = Order("d", ("worker",), {"JOBQ_URL": "redis://:opensesame@h"}, (), 0.0)
    rdd = spark.sparkContext.parallelize(range(1), 1).mapPartitions(Slot(order).run_all)
    shown = [rdd.toDebugString().decode(), str(spark.sparkContext.getConf().getAll())]
    assert not any("opensesame" in text for text in shown)


@pytest.fixture
def drain(env, tmp_path):
    """drain(*options): a running `jobq lake drain` of queue low, in a process of its own."""
    running = []
    err = (tmp_path / "err").open("wb")

    def begin(*options):
        command = [
            sys.executable,
            "-m",
            "jobq",
            "lake",
            "drain",
            "--queues",
            "low",
            "--import",
            MODULE,
        ]
        process = subprocess.Popen(
            [*command, *options], env=env, cwd=ROOT, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err,
        )  # fmt: skip
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()
    err.close()


def below(process, part):
    """Processes below one whose command line has `part`."""
    found = []
    for one in psutil.Process(process.pid).children(recursive=True):
        try:
            if any(part in word for word in one.cmdline()):
                found.append(one)
        except psutil.Error:
            continue
    return found


@pytest.mark.timeout(1800)
def test_lost_executors_cost_no_job(drain, send, valkey_queue, ledger, tmp_path):
    """One loses its Python worker, the other its whole JVM, both while a job runs."""
    send("gated", "a", "b")
    send("quick", *(f"q{n}" for n in range(100)))
    process = drain(
        "--master", "local-cluster[2,1,512]", "--conf", "spark.executor.memory=512m", "--lease", "2s",
        "--conf", "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "--json",
    )  # fmt: skip
    until(lambda: len(ledger.lines("start")) == 2)
    tethers = below(process, "jobq.pipeline.tether")
    held = [p for tether in tethers for p in (tether, *tether.children(recursive=True))]
    jvm = next(p for p in tethers[1].parents() if "java" in p.name())
    assert not any("SparkSubmit" in word for word in jvm.cmdline()), (
        "an executor's, not the driver's"
    )
    tethers[0].parent().send_signal(signal.SIGKILL)
    jvm.send_signal(signal.SIGKILL)
    gone(held)
    for name in "ab":
        ledger.gate(name).touch()
    out, _ = process.communicate(timeout=400)
    assert process.returncode == 0, (tmp_path / "err").read_text()
    record = json.loads(out)
    assert (record["done"], record["dead"], record["failed"]) == (102, 0, [])
    result = Audit(valkey_queue).result()
    assert (result.accepted, result.finished, result.lost, result.live) == (102, 102, 0, 0)


@pytest.mark.timeout(1800)
def test_workers_end_when_the_driver_and_its_jvm_are_killed(drain, send, valkey_queue, ledger, env):
    send("gated", "a")
    process = drain("--master", "local[1]", "--executors", "1")
    until(lambda: ledger.lines("start"))
    tethers = below(process, "jobq.pipeline.tether")
    held = [p for tether in tethers for p in (tether, *tether.children(recursive=True))]
    for jvm in [p for p in below(process, "pyspark") if "java" in p.name()]:
        jvm.kill()
    assert process.wait(400) == 1
    gone(held)
    ledger.gate("a").touch()
    assert Slot(order(env)).run(0).code == 0
    result = Audit(valkey_queue).result()
    assert (result.accepted, result.finished, result.lost) == (1, 1, 0)
