"""A worker shows its state while it works, and its entries are deleted when it has left."""

from __future__ import annotations

import signal

from jobq import __version__
from jobq.queue import presence

from .conftest import until


def test_worker_shows_what_it_runs_and_leaves_no_trace(
    start, send, ledger, queue, client, redis, server
):
    send("gated", "a")
    worker = start("--processes", "2", "--lease", "3s", "--name", "w")
    until(lambda: ledger.lines("start", "a"))

    def children():
        return presence.running(client, ["w"]).get("w") or ()

    def jobs():
        return [(child.pid, job) for child in children() for job in child.running]

    [(pid, job)] = until(jobs)
    assert pid in worker.children() and (job.queue, job.mid) == ("low", "a")
    [entry] = presence.workers(client)
    assert (entry.name, entry.version, entry.pid) == ("w", __version__, worker.pid)
    # On Valkey the worker knows async jobs, of which a child runs ten at the same time.
    assert (entry.slots, entry.quiet) == (20 if server.kind == "valkey" else 2, False)
    assert entry.started_at - 60_000 < job.started_at <= client.clock_ms() + 60_000
    # The names are written with the first presence, not before it.
    [names] = until(lambda: [*filter(None, presence.job_names(client, [entry.jobs]).values())])
    assert {"gated", "quick"} <= names
    until(lambda: all(child.rss for child in children()))

    worker.send(signal.SIGTSTP)
    until(lambda: presence.workers(client)[0].quiet)
    ledger.gate("a").touch()
    until(lambda: sum(child.ended for child in children()) == 1)
    assert jobs() == []
    assert worker.stop() == 0
    assert not redis.exists("jobq:workers", "jobq:running", "jobq:jobs")


def test_what_a_job_logged_outlives_its_process_and_what_it_hides_its_worker(
    start, send, ledger, queue, client
):
    send("logged", "a")
    worker = start("--processes", "1", "--lease", "30s")
    until(lambda: ledger.lines("start", "a"))
    until(lambda: queue.admin.log("a", 1))
    ledger.gate("a").touch()
    until(lambda: b"ValueError" in (queue.admin.log("a", 2) or b""))

    killed, failed = (queue.admin.log("a", attempt).decode() for attempt in (1, 2))
    assert "logged: attempt 1 of a at redis://***@host\n" in killed and "the end" not in killed
    assert "attempt 2 of a" in failed and "at the end" in failed
    left_ms = client.command("PTTL", f"{queue.prefix}log:a#2")
    assert 3_000_000 < left_ms <= 3_600_000
    assert worker.stop() == 0
    hidden = {"logged": ("name", "pin", "1")}
    assert presence.redactions(client, ["logged", "quick"]) == hidden
