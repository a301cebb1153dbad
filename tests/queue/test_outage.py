"""The outage buffer against servers that are killed and started again."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

from jobq import job
from jobq.client.connection import connect
from jobq.client.runtime import runtime
from jobq.config import ServerSettings, settings_from_env
from jobq.errors import BufferFullError, ConfigError, UnavailableError
from jobq.jobs.registry import Registry
from jobq.queue.outage import switch_off_buffers
from jobq.queue.queue import Queue
from jobq.queue.types import Ending

from ..client.deployments import wait_for
from ..conftest import answering, binary, start


class Stoppable:
    """A server whose writes are on disk before it answers; it can be killed and started again."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.socket = f"{folder}/s"
        self.start()

    def start(self):
        self.process = start(
            self.program, self.folder, "--port", "0", "--unixsocket", self.socket,
            "--appendonly", "yes", "--appendfsync", "always",
        )  # fmt: skip
        answering(self.process, self.folder, unix_socket_path=self.socket)

    def kill(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def stoppable(server, short_folder, request):
    folder = short_folder / f"outage-{abs(hash(request.node.name)) % 10**8}"
    folder.mkdir()
    made = Stoppable(binary(server.kind), folder)
    yield made
    made.kill()


@pytest.fixture
def make(stoppable):
    made = []

    def client(**settings):
        given = {"url": f"unix://{stoppable.socket}", "outage_buffer": 1000, **settings}
        made.append(connect(settings=ServerSettings(**given)))
        return made[-1]

    yield client
    for one in made:
        if one.outage:
            one.outage.forget()
        one.close()


def test_outage_amid_a_thousand_enqueues_loses_none_and_keeps_their_order(stoppable, make):
    client = make()
    queue = Queue("low", client)
    actions, thread = [], threading.Thread(target=stoppable.kill)
    for number in range(1000):
        if number == 300:
            thread.start()
        actions.append(queue.enqueue(b"v", mid=f"m{number:03}").action)
        if number == 310:
            thread.join()
    assert client.nbuffered > 600
    stoppable.start()
    client.flush(60)
    assert client.nbuffered == 0
    assert set(actions) == {"added", "buffered"}
    ready = client.command("LRANGE", "jobq:{low}:ready", 0, -1)
    assert ready == [f"m{number:03}".encode() for number in range(1000)]
    assert queue.admin.counts().messages == 1000
    wait_for(lambda: queue.enqueue(b"v").action == "added", "never at once again")


def test_without_a_bound_enqueue_fails(stoppable, make):
    client = make(outage_buffer=0, patience_s=0.1)
    stoppable.kill()
    with pytest.raises(UnavailableError):
        Queue("low", client).enqueue(b"v")
    assert client.nbuffered == 0
    client.flush()
    stoppable.start()


def test_overflow_is_an_error_and_accepts_nothing(stoppable, make):
    client = make(outage_buffer=5)
    queue = Queue("low", client)
    stoppable.kill()
    assert {queue.enqueue(b"v").action for _ in range(3)} == {"buffered"}
    with pytest.raises(BufferFullError, match="outage buffer, which has 3 messages; at most 5"):
        queue.enqueue_many([b"v"] * 3)
    assert [one.action for one in queue.enqueue_many([b"v"] * 2)] == ["buffered"] * 2
    with pytest.raises(BufferFullError, match=r"was not accepted.*at most 5 messages"):
        queue.enqueue(b"v")
    with pytest.raises(
        UnavailableError, match="5 enqueued messages are still only in this process's memory"
    ):
        client.flush(0.01)
    stoppable.start()
    client.flush(60)
    assert queue.admin.counts().ready == 5


def test_batch_beyond_the_bound_is_unavailable_as_without_a_buffer(stoppable, make):
    client = make(outage_buffer=5, patience_s=0.1)
    stoppable.kill()
    with pytest.raises(UnavailableError, match="nothing was sent"):
        Queue("low", client).enqueue_many([b"v"] * 6)
    assert client.nbuffered == 0
    stoppable.start()


def test_size_is_bounded_too(stoppable, make, monkeypatch):
    monkeypatch.setattr("jobq.queue.outage.MAX_BYTES", 3_000)
    client = make()
    queue = Queue("low", client)
    stoppable.kill()
    queue.enqueue(b"v" * 2_000)
    with pytest.raises(BufferFullError):
        queue.enqueue(b"v" * 2_000)
    stoppable.start()
    client.flush(60)


def test_call_that_arrived_before_its_reply_was_lost_is_not_sent_twice(stoppable, make):
    """The frozen server has the call in its socket and runs it when it resumes; the repeat follows."""
    client = make(socket_timeout_s=0.05)
    queue = Queue("low", client)
    queue.enqueue(b"v", mid="first")
    stoppable.process.send_signal(signal.SIGSTOP)
    actions = [queue.enqueue(b"v").action for _ in range(3)]
    assert actions == ["buffered"] * 3
    stoppable.process.send_signal(signal.SIGCONT)
    client.flush(60)
    patient = Queue("low", make(outage_buffer=0, patience_s=60))
    assert patient.admin.counts().messages == 4
    assert patient.client.command("LLEN", "jobq:{low}:ready") == 4


def test_delay_counts_from_the_enqueue(stoppable, make, monkeypatch):
    away_s, tried_since = 0.0, threading.Event()

    def monotonic():
        if away_s:
            tried_since.set()
        return time.monotonic() + away_s

    clock = SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
    monkeypatch.setattr("jobq.queue.outage.time", clock)
    client = make()
    queue = Queue("low", client)
    stoppable.kill()
    asked_ms = time.time() * 1000
    queue.enqueue(b"v", mid="m", delay=60)
    queue.enqueue(b"v", mid="soon", delay=0.01)
    away_s = 30.0
    assert tried_since.wait(120)
    stoppable.start()
    client.flush(60)
    due_ms = float(client.command("ZSCORE", "jobq:{low}:due", "m"))
    assert -1_000 < due_ms - asked_ms - 30_000 < 29_000
    wait_for(lambda: queue.dequeue(5).messages, "the delay began anew")


def test_call_that_the_server_refuses_is_told_and_holds_up_nobody(stoppable, make, caplog):
    client = make()
    client.command("SET", "jobq:{bad}:messages", "no hash")
    stoppable.kill()
    Queue("bad", client).enqueue(b"v", mid="unfit")
    Queue("low", client).enqueue(b"v", mid="fit")
    stoppable.start()
    client.flush(60)
    assert Queue("low", client).status("fit").word == "queued"
    [told] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "lost unfit for queue bad" in told.getMessage()


def aside(client, nmessages):
    wait_for(lambda: client.outage._naside and client.nbuffered == nmessages, "others don't pass")


def test_call_to_a_full_line_lets_other_keys_and_queues_pass(stoppable, make, caplog):
    client = make()
    low, high = Queue("low", client), Queue("high", client)
    low.rules(key_waiting=2)
    low.enqueue(b"v", mid="a0", key="acme")
    stoppable.kill()
    for number in range(1, 5):
        low.enqueue(b"v", mid=f"a{number}", key="acme", ordered=True)
        low.enqueue(b"v", mid=f"b{number}", key=f"other-{number % 2}")
        high.enqueue(b"v", mid=f"h{number}")
    low.enqueue_many([("a5", b"v", "acme"), ("c5", b"v", "mixed")])
    stoppable.start()
    aside(client, 5)
    assert high.admin.counts().ready == 4
    assert {low.status(f"b{number}").word for number in range(1, 5)} == {"queued"}
    # Later calls also pass, unless they are for that line.
    assert low.enqueue(b"v", mid="direct", key="new").action == "added"
    assert low.enqueue(b"v", mid="a6", key="acme").action == "buffered"
    seen = []
    while not {"a5", "a6"} <= set(seen):
        for one in (found := low.dequeue(1)).messages:
            seen.append(one.mid)
            low.finish([Ending(mid=one.mid, token=one.token)])
        wait_for(
            lambda found=found: not found.messages or client.nbuffered == 0 or low.admin.counts().ready > 1,
            "room was not used",
        )  # fmt: skip
    client.flush(60)
    assert [mid for mid in seen if mid.startswith("a")] == [f"a{n}" for n in range(7)]
    assert not [one for one in caplog.records if one.levelno == logging.ERROR]
    assert low.admin.sample().refused == 0


@pytest.mark.one_server
def test_call_that_no_line_ever_has_room_for_is_lost_and_counted(stoppable, make, caplog):
    client = make()
    low = Queue("low", client)
    low.rules(key_waiting=2)
    stoppable.kill()
    low.enqueue_many([b"v"] * 3, key="acme")
    low.enqueue(b"v", mid="fits", key="acme")
    stoppable.start()
    client.flush(60)
    assert low.status("fits").word == "queued"
    [told] = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert "rejected after an outage: key acme has 2 waiting messages, the maximum" in told
    sample = low.admin.sample()
    assert sample.refused == 3 and abs(sample.refused_at - time.time() * 1000) < 60_000


@pytest.mark.one_server
def test_refusal_that_lasts_is_lost_in_the_end(stoppable, make, caplog, monkeypatch):
    client = make()
    low = Queue("low", client)
    low.rules(key_waiting=1)
    low.enqueue(b"v", key="acme")
    stoppable.kill()
    low.enqueue(b"v", mid="late", key="acme")
    stoppable.start()
    aside(client, 1)
    with pytest.raises(UnavailableError, match="key acme has 1 waiting message, the maximum;"):
        client.flush(0.01)
    monkeypatch.setattr("jobq.queue.outage.REFUSED_S", 0.0)
    client.flush(60)
    assert low.status("late").word == "nil" and low.admin.sample().refused == 1
    assert "lost late for queue low" in caplog.text


@pytest.mark.one_server
def test_refused_calls_are_counted_when_the_process_ends(stoppable, make, caplog, monkeypatch):
    monkeypatch.setattr("jobq.queue.outage.FLUSH_S", 0.01)
    client = make(patience_s=2)
    low = Queue("low", client)
    low.rules(key_waiting=1)
    low.enqueue(b"v", key="acme")
    stoppable.kill()
    low.enqueue(b"v", key="acme")
    stoppable.start()
    aside(client, 1)
    client.outage.leave()
    assert low.admin.sample().refused == 1
    assert "are lost with this process: " in caplog.text
    assert "1 enqueued message is still only in" in caplog.text


@pytest.mark.one_server
def test_unconfirmed_call_holds_back_nobody(stoppable, make):
    client = make()
    low = Queue("low", client)
    stoppable.kill()
    # This server has no replicas.
    low.enqueue(b"v", mid="first", durability="replicas=1")
    low.enqueue(b"v", mid="second")
    stoppable.start()
    aside(client, 1)
    assert [low.status(mid).word for mid in ("first", "second")] == ["queued", "queued"]


@pytest.mark.one_server
def test_full_server_keeps_the_order_of_all(stoppable, make):
    client = make()
    low = Queue("low", client)
    limits = connect(settings=ServerSettings(url=f"unix://{stoppable.socket}"))
    stoppable.kill()
    for number in range(3):
        low.enqueue(b"v", mid=f"m{number}")
    stoppable.start()
    client.flush(60)
    limits.command("CONFIG", "SET", "maxmemory", "1")
    stoppable.process.send_signal(signal.SIGSTOP)
    for number in range(3, 6):
        low.enqueue(b"v", mid=f"m{number}", key="k" if number == 4 else None)
    stoppable.process.send_signal(signal.SIGCONT)
    wait_for(lambda: "memory" in client.outage._trouble, "memory was not full")
    assert client.nbuffered == 3 and client.outage._naside == 0
    limits.command("CONFIG", "SET", "maxmemory", "0")
    client.flush(60)
    assert low.admin.counts().messages == 6
    limits.close()


def test_forked_child_leaves_what_waits_to_its_parent(stoppable, make):
    client = make()
    queue = Queue("low", client)
    stoppable.kill()
    queue.enqueue(b"v")
    pid = os.fork()
    if pid == 0:
        os._exit(0 if client.nbuffered == 0 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    stoppable.start()
    client.flush(60)
    assert queue.admin.counts().messages == 1


SCRIPT = """
import sys
from jobq import Queue, connect, config
from jobq.queue import outage
outage.FLUSH_S = 0.1
queue = Queue("low", connect(settings=config.settings_from_env()))
print(queue.enqueue(b"v").action, flush=True)
"""


def producer(stoppable, patience):
    env = {
        "JOBQ_URL": f"unix://{stoppable.socket}",
        "JOBQ_OUTAGE_BUFFER": "10",
        "JOBQ_PATIENCE": patience,
    }
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


def test_process_that_ends_waits_for_the_server(stoppable, make):
    stoppable.kill()
    process = producer(stoppable, "120s")
    assert process.stdout.readline() == "buffered\n"
    stoppable.start()
    assert "lost" not in process.communicate(timeout=120)[1]
    assert Queue("low", make()).admin.counts().messages == 1


def test_process_that_ends_without_the_server_tells_what_is_lost(stoppable):
    stoppable.kill()
    said = producer(stoppable, "300ms").communicate(timeout=120)
    assert said[0] == "buffered\n"
    assert "are lost with this process: " in said[1]
    assert "1 enqueued message is still only in" in said[1]
    stoppable.start()


def test_job_gives_a_receipt_that_says_so(stoppable, make):
    @job(queue="low", client=make(), registry=Registry())
    def noted() -> None: ...

    stoppable.kill()
    receipt = noted.enqueue()
    assert (receipt.action, receipt.accepted) == ("buffered", True)
    stoppable.start()
    noted.settings.client.flush(60)
    assert receipt.status().word == "queued"


def test_workers_switch_it_off(stoppable, make, monkeypatch):
    Queue("low", before := make())
    assert before.outage
    monkeypatch.setattr(runtime, "may_buffer", True)
    monkeypatch.setattr(runtime, "clients", weakref.WeakSet([before]))
    switch_off_buffers()
    assert before.outage is None
    Queue("low", after := make())
    assert after.outage is None


def test_bound_comes_from_the_environment():
    assert settings_from_env({"JOBQ_OUTAGE_BUFFER": "7"}).outage_buffer == 7
    assert settings_from_env({}).outage_buffer == 0
    with pytest.raises(ConfigError, match="use a whole number"):
        settings_from_env({"JOBQ_OUTAGE_BUFFER": "many"})
