"""Six incidents: the first finding of `queues`, `workers`, `why`, `doctor` and the first page.

The test sets the clock. Each incident is read when its cause first becomes visible: for a lost host, a lease and 5
s after its last heartbeat, so all are reported within a lease and 15 s.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobq.client.connection import Client, connect
from jobq.events import CRASH, attempt_record
from jobq.jobs.codec import encode
from jobq.queue import presence
from jobq.queue.presence import LATE_MS, ChildEntry, RunningJob
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Message, OutcomeWord
from tests.web.conftest import visit

__all__ = ["visit"]
LEASE_MS = 15_000
SECOND = 1_000
JOB = "shop.mail.send"


class Night:
    """One queue, mails, and its workers, by a clock that the test sets."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.now = client.clock_ms()
        client.clock = lambda: self.now
        self.mails = Queue("mails", client)

    def later(self, ms: int) -> None:
        """Let time pass."""
        self.now += ms

    def worker(
        self, name: str, *jobs: str, running: tuple[tuple[str, int], ...] = (), **more: Any
    ) -> None:
        """Send a worker's heartbeat. running: message ids with their start times."""
        names = jobs or (JOB,)
        presence.put_jobs(self.client, names)
        presence.put_worker(self.client, name, {
            "host": name.partition(":")[0], "pid": 7, "version": "1", "queues": ["mails"], "slots": 2,
            "lease_ms": LEASE_MS, "started_at": 1, "seen_at": self.now, "running": len(running),
            "jobs": presence.digest_of(names), **more,
        })  # fmt: skip
        runs = tuple(RunningJob("mails", mid, since) for mid, since in running)
        presence.put_running(self.client, name, [ChildEntry(11, "working", 0, 0, runs)])

    def enqueue(self, *mids: str, job: str = JOB, ago_ms: int = 0) -> None:
        """Enqueue messages with these ids."""
        content = encode(job, [1], enqueued_at=self.now - ago_ms)
        self.mails.enqueue_many([(mid, content) for mid in mids])

    def take(self, number: int) -> list[Message]:
        """Dequeue, as a worker does."""
        return self.mails.dequeue(number, lease=LEASE_MS / 1000).messages

    def end(
        self, messages: list[Message], outcome: OutcomeWord, ran_ms: int = 2_000, error: str = ""
    ) -> None:
        """End the given attempts."""
        mark = "" if error == CRASH else "f0"
        record = attempt_record(JOB, 1, 10, ran_ms * 1_000, 0, 0, "web-1:7", error, mark)
        self.mails.finish([
            Ending(mid=one.mid, token=one.token, outcome=outcome, record=record, backoff=0) for one in messages
        ])  # fmt: skip

    def done_before(self) -> None:
        """Run a few jobs of 2 s, so that their usual time is known."""
        self.enqueue(*(f"old{n}" for n in range(6)))
        self.end(self.take(6), "done")
        self.later(120 * SECOND)


@pytest.fixture
def night(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Night]:
    made = Night(client)

    def connected(**given: Any) -> Client:
        other = connect(**given)
        other.clock = lambda: made.now
        return other

    monkeypatch.setattr("jobq.cli.session.connect", connected)
    yield made
    client.clock = None


def poison(night: Night) -> str:
    night.enqueue("m0", "waits")
    night.worker("web-1:7")
    for _ in range(2):
        night.end(night.take(1), "crashed", error=CRASH)
    return f"job {JOB} of queue mails kills its worker processes"


def stuck(night: Night) -> str:
    night.done_before()
    night.enqueue("m0", "m1", "waits")
    night.take(2)
    began = night.now
    night.later(11 * SECOND)
    night.worker("web-1:7", running=(("m0", began), ("m1", began)))
    return f"{JOB} m0 has run for 11 s on web-1:7, usually up to 2 s (p95)"


def backlog(night: Night) -> str:
    night.done_before()
    night.enqueue(*(f"m{n}" for n in range(40)), ago_ms=61 * SECOND)
    night.enqueue("waits")
    night.end(night.take(4), "done")
    night.take(2)
    night.worker("web-1:7", running=(("m4", night.now - SECOND), ("m5", night.now - SECOND)))
    return "queue mails has a backlog: 35 ready"


def full(night: Night) -> str:
    night.enqueue("waits")
    night.worker("web-1:7")
    night.client.command("CONFIG", "SET", "maxmemory", 1)
    return "the server's memory is full"


def renamed(night: Night) -> str:
    night.worker("web-1:7", "shop.mail.deliver")
    night.enqueue("waits", "m1")
    night.end(night.take(2), "unknown")
    return f"no worker of queue mails knows the job {JOB}"


def dead_host(night: Night) -> str:
    night.enqueue("m0", "m1", "waits")
    night.take(2)
    night.worker("web-7:9", running=(("m0", night.now), ("m1", night.now)))
    night.later(LEASE_MS + LATE_MS)
    return "web-7:9 on host web-7"


INCIDENTS: dict[str, Callable[[Night], str]] = {
    "poison": poison, "stuck": stuck, "backlog": backlog, "server_full": full, "unknown_job": renamed,
    "worker_lost": dead_host,
}  # fmt: skip


def first_on_page(text: str) -> str:
    """Return the first line of the findings."""
    lines = re.findall(r"<li>.*?</li>", text.partition('id="look"')[2], re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", lines[0]))


def first_below(text: str) -> str:
    """The first finding below a table."""
    return next(line for line in text.splitlines() if line.startswith("! "))


@pytest.mark.parametrize("code", INCIDENTS)
def test_first_finding_is_the_cause_when_it_can_be_seen(
    code: str, night: Night, cli: Any, visit: Any, redis: Any
):
    cause = INCIDENTS[code](night)
    try:
        asked = {
            "queues": first_below(cli("queues").out), "workers": first_below(cli("workers").out),
            "doctor": cli("check", "doctor").out.splitlines()[0],
        }  # fmt: skip
        for name, text in asked.items():
            assert cause in text, name
        reasons = cli("why", "waits").out.splitlines()
        assert WHY[code] in reasons[1]
        page = visit().get("/").text
        assert cause.lower() in first_on_page(page).lower()
        if code != "backlog":
            for text in (*asked.values(), *reasons, page):
                assert "add processes" not in text and "faster than they are processed" not in text
    finally:
        redis.config_set("maxmemory", 0)


def test_crashes_are_no_finding_when_their_message_was_cancelled(night: Night, cli: Any) -> None:
    cause = poison(night)
    lines = cli("queues").out.splitlines()
    assert next(line for line in lines if cause in line).endswith("by m0")
    night.mails.cancel("m0")
    assert cause not in cli("queues").out


def test_dead_message_is_not_to_be_revived_at_once_when_it_killed_its_process(
    night: Night, cli: Any
) -> None:
    night.enqueue("m0")
    for _ in range(3):
        night.end(night.take(1), "crashed", error=CRASH)
    assert "once the job no longer kills its process" in cli("why", "m0").out


def test_lost_worker_comes_below_the_cause_when_another_serves_its_queue(
    night: Night, cli: Any
) -> None:
    night.worker("web-7:9", running=(("m0", night.now),))
    night.later(LEASE_MS + LATE_MS)
    cause = renamed(night)
    out = cli("workers").out
    assert cause in first_below(out) and "web-7:9 on host web-7" in out
    assert "m0" not in out


def test_blocked_queue_says_that_its_worker_is_silent_when_a_lease_passed(
    night: Night, cli: Any
) -> None:
    stuck(night)
    night.later(LEASE_MS + SECOND)
    for command in ("queues", "workers"):
        found = first_below(cli(command).out)
        assert "queue mails is blocked: " in found and "silent for 16 s" in found
    assert "check whether host web-1 is up" in cli("queues").out
    assert "dump" not in cli("queues").out + cli("why", "waits").out


#: First reason in `why` for a waiting message.
WHY = {
    "poison": "waiting", "stuck": f"{JOB} m0 has run for 11 s on web-1:7, usually up to 2 s (p95)",
    "backlog": "messages of the queue come before it; 2 of 2 slots are busy",
    "server_full": "the server's memory is full",
    "unknown_job": f"no worker of queue mails knows the job {JOB} (web-1:7)",
    "worker_lost": "worker web-7:9 on host web-7, which is lost: no heartbeat for 20 s",
}  # fmt: skip


def test_why_names_the_present_run_when_a_lost_worker_reported_an_earlier_run(
    night: Night, cli: Any
) -> None:
    night.enqueue("m0")
    night.take(1)
    night.worker("web-7:9", running=(("m0", night.now),))
    night.later(LEASE_MS + LATE_MS)
    assert "web-7:9" in cli("why", "m0").out
    began = night.now
    [again] = night.take(1)
    assert again.mid == "m0" and again.attempt == 2
    shown = cli("why", "m0").out
    assert "fetched by a worker, attempt 2" in shown and "web-7:9" not in shown
    night.worker("web-1:7", running=(("m0", began),))
    assert "has run for 0 s in web-1:7" in cli("why", "m0").out
    [status] = cli("status", "m0", "--json").records
    assert (status["worker"], status["running_since"]) == ("web-1:7", began)
    night.end([again], "done")
    [status] = cli("status", "m0", "--json").records
    assert (status["state"], status["worker"], status["running_since"]) == ("done", "web-1:7", 0)


def test_workers_lost_long_ago_take_over_nothing_and_stopping_workers_are_not_resumed(
    night: Night, cli: Any
) -> None:
    for name in ("web-7:9", "web-7:10"):
        night.worker(name, running=(("m0", night.now),))
    night.later(LEASE_MS + LATE_MS)
    night.worker("web-1:7")
    assert "so they count as lost; other workers take over 2 running messages" in cli("workers").out
    night.later(700 * SECOND)
    night.worker("web-1:7", quiet=True, leaving=True)
    night.enqueue("waits")
    shown = cli("workers").out
    assert "so it counts as lost\n" in shown and "take over" not in shown
    assert "→ start another worker: jobq worker --import" in shown and "resume" not in shown
