"""Probes: answers of a worker's monitor process while the worker starts, works, drains, hangs or loses its server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from jobq.errors import UnavailableError
from jobq.metrics.serving import fetch, parse_endpoint

from .conftest import ROOT, until
from .test_server_trouble import own, own_queue

__all__ = ["own", "own_queue"]


@pytest.fixture
def served(start, short_folder, tmp_path):
    """served(…): a worker with probes; asking it for a page returns the status and the text."""
    path = short_folder / f"health-{os.getpid()}.sock"

    def begin(*options, **more):
        worker = start("--health", f"unix:{path}", *options, **more)

        def ask(page):
            try:
                answer = fetch(parse_endpoint(f"unix:{path}"), page)
            except UnavailableError:
                return 0, ""
            return answer.status, answer.body.decode().strip()

        return worker, ask

    yield begin
    path.unlink(missing_ok=True)


def monitor_of(worker):
    """The first child of the supervisor."""
    return min(psutil.Process(worker.pid).children(), key=lambda one: one.create_time())


@pytest.mark.one_server
def test_readiness_follows_quiet_and_drain_before_liveness_does(
    served, send, ledger, own, own_queue
):
    send("gated", "a", to=own_queue)
    worker, ask = served("--processes", "1", "--lease", "2s", url=own.url)
    until(lambda: ask("/readyz") == (200, "ok"))
    until(lambda: ledger.lines("start", "a"))
    worker.send(signal.SIGTSTP)
    until(lambda: ask("/readyz") == (503, "quiet: it fetches no messages until CONT"))
    worker.send(signal.SIGCONT)
    until(lambda: ask("/readyz") == (200, "ok"))
    worker.send(signal.SIGTERM)
    until(lambda: ask("/readyz") == (503, "draining: it finishes running jobs, then exits"))
    assert ask("/healthz") == (200, "ok")
    ledger.gate("a").touch()
    assert worker.wait() == 0
    assert ask("/healthz") == (0, "")


@pytest.mark.one_server
def test_lost_server_makes_a_worker_unready_and_not_dead(served, own):
    worker, ask = served("--processes", "1", "--lease", "1s", url=own.url)
    until(lambda: ask("/readyz") == (200, "ok"))
    own.process.send_signal(signal.SIGSTOP)
    try:
        until(lambda: ask("/readyz") == (503, "the server doesn't answer"))
        assert ask("/healthz") == (200, "ok")
    finally:
        own.process.send_signal(signal.SIGCONT)
    until(lambda: ask("/readyz") == (200, "ok"))
    assert worker.stop() == 0


@pytest.mark.one_server
def test_stopped_supervisor_is_seen_and_a_killed_monitor_comes_back(served):
    worker, ask = served("--processes", "1")
    until(lambda: ask("/readyz") == (200, "ok"))
    monitor_of(worker).kill()
    until(lambda: "the monitor process died; restarting it" in worker.log)
    until(lambda: ask("/readyz") == (200, "ok"))
    worker.send(signal.SIGSTOP)
    until(lambda: ask("/healthz")[0] == 503)
    assert "the supervisor has been stuck for " in ask("/readyz")[1]
    worker.send(signal.SIGCONT)
    until(lambda: ask("/healthz") == (200, "ok"))
    assert worker.stop() == 0


@pytest.mark.one_server
def test_check_asks_the_worker_and_says_what_it_answers(served, short_folder):
    worker, ask = served("--processes", "1")
    until(lambda: ask("/readyz") == (200, "ok"))
    where = f"unix:{short_folder}/health-{os.getpid()}.sock"

    def check(*options, **variables):
        command = [sys.executable, "-m", "jobq", "worker", *options]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    assert check("--check", JOBQ_WORKER_HEALTH=where) == (0, "ok\n")
    code, text = check("--check", "ready", "--health", where, "--json")
    assert code == 0 and json.loads(text) == {"ok": True, "answer": "ok"}
    worker.send(signal.SIGTSTP)
    until(lambda: ask("/readyz")[0] == 503)
    assert check("--check", "ready", "--health", where) == (
        1,
        "quiet: it fetches no messages until CONT\n",
    )
    assert worker.stop() == 0
    code, text = check("--check", "--health", where)
    assert code == 3 and "can't reach unix:" in text
    code, text = check("--check")
    assert code == 2 and "JOBQ_WORKER_HEALTH" in text


@pytest.mark.one_server
def test_address_in_use_ends_the_worker_before_it_takes_anything(served, start, short_folder):
    worker, ask = served("--processes", "1")
    until(lambda: ask("/readyz") == (200, "ok"))
    second = start("--health", f"unix:{short_folder}/health-{os.getpid()}.sock")
    assert second.wait() == 2
    assert "can't listen at unix:" in second.log and " started" not in second.log
    assert worker.stop() == 0


COUNTING = """
import prometheus_client as prometheus
from tests.lifecycle import jobs_at_work
from jobq import job

MAILS = prometheus.Counter("shop_mails", "Mails sent.")
OPEN = prometheus.Gauge("shop_open", "Open connections.", multiprocess_mode="livesum")

@job(name="counts", queue="low")
def counts(ledger, name):
    MAILS.inc()
    OPEN.set(1)
    jobs_at_work.note(ledger, name, "end")
"""


@pytest.mark.one_server
def test_metrics_of_the_application_are_served_with_the_workers(served, send, ledger, tmp_path):
    (tmp_path / "counting_jobs.py").write_text(COUNTING)
    folder = tmp_path / "metrics"
    folder.mkdir()
    env = {"PYTHONPATH": str(tmp_path), "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    worker, ask = served("--processes", "1", module="counting_jobs", env=env)

    def values():
        lines = ask("/metrics")[1].splitlines()
        return [line for line in lines if line.startswith("shop_")]

    send("counts", "a")
    until(lambda: ledger.lines("end", "a"))
    assert set(values()) == {"shop_mails_total 1.0", "shop_open 1.0"}
    [child] = worker.children()[-1:]
    worker.send(signal.SIGHUP)
    until(lambda: not psutil.pid_exists(child))
    send("counts", "b")
    until(lambda: ledger.lines("end", "b"))
    # A counter continues, and the gauge of the lost child doesn't count.
    assert set(values()) == {"shop_mails_total 2.0", "shop_open 1.0"}
    folder.joinpath("counter_1.db").write_bytes(b"broken")
    assert "jobq_slots" in ask("/metrics")[1]
    assert worker.stop() == 0
    assert "can't read the application's metrics" in worker.log
