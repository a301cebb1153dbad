"""This release reads what the previous one wrote, and works beside it while workers are replaced."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from pathlib import Path

import psutil
import pytest

from jobq.jobs.codec import encode
from jobq.protocols.reliable import ReliableQueue
from jobq.protocols.rsmq import Rsmq
from jobq.queue import presence
from jobq.queue.queue import Queue
from jobq.topics import Topic
from tests.lifecycle.conftest import until
from tests.upgrade.conftest import ROOT, unpacked
from tests.upgrade.leave import CODEC_KEYS
from tests.upgrade.work import carry

WORK = ("--import", "tests.upgrade.work", "--log-level", "warning")
LIMIT_S = 120


def finished(process):
    """Its output, once it has ended well."""
    code = process.wait(LIMIT_S)
    text = process.log.read_text()
    assert code == 0, text
    return text


def lines(ledger: Path) -> list[list[str]]:
    """What the jobs wrote."""
    return [line.split() for line in ledger.read_text().split("\n")[:-1]]


def test_worker_runs_every_message_when_the_previous_release_wrote_it(left_on, left, jobq, ledger):
    letters, sealed, paused = (Queue(name, left_on) for name in ("letters", "sealed", "paused"))
    assert letters.admin.fsck() == []
    url = left_on.settings.url

    worker = jobq("worker", "--url", url, "--queues", "letters,paused", *WORK)
    until(lambda: {mid for _, mid, _ in lines(ledger)} >= left["runs"].keys())
    worker.send_signal(signal.SIGTERM)
    finished(worker)
    finished(jobq(
        "worker", "--url", url, "--queues", "sealed", "--burst", *WORK, JOBQ_CODEC="sign", JOBQ_CODEC_KEYS=CODEC_KEYS
    ))  # fmt: skip

    ran = {mid: word.partition("-")[2] for word, mid, _ in lines(ledger)}
    assert ran == left["runs"] | {"sealed": "sealed"}
    assert sealed.admin.counts().messages == 0
    assert [letters.status(mid).word for mid in left["waits"]] == ["queued-with-backoff"]
    assert [paused.status("paused").word, paused.admin.counts().messages] == ["queued", 1]
    assert letters.admin.fsck() == []


def test_dead_message_is_revived_when_the_previous_release_buried_it(left_on, left, jobq, ledger):
    letters = Queue("letters", left_on)
    buried = letters.admin.dead()
    assert [one.mid for one in buried] == left["dead"]

    letters.admin.revive(*(one.dead_id for one in buried))
    jobq("worker", "--url", left_on.settings.url, "--queues", "letters", *WORK)
    until(lambda: ["delivered-dead", "dead"] in [line[:2] for line in lines(ledger)])


def test_other_queues_give_what_waits_when_the_previous_release_wrote_it(left_on, left):
    with Topic("readings", left_on).reader("bills") as reader:
        batch = reader.poll(100)
        assert [m.content.decode() for m in batch.messages] == left["unread"]
        assert {m.headers["unit"] for m in batch.messages} == {"kWh"}
        reader.commit(batch)

    mails = Rsmq(left_on)
    until(lambda: mails.counts("mails").visible == 3)
    received = {m.message: m.rc for m in mails.receive_messages("mails", 10)}
    assert received == {"one": 2, "two": 1, "three": 1}

    parcels = ReliableQueue(left_on)
    assert [(r.content, r.deliveries) for r in parcels.recover("parcels", 9, 0)] == [(b"red", 2)]
    assert [p.content for p in parcels.pop(9, 0, "parcels")] == [b"green", b"blue"]


@pytest.mark.one_server
def test_lake_goes_on_when_the_previous_release_began_it(left_on, left, jobq, tmp_path):
    lake, url = str(unpacked("lake.tar.xz", tmp_path) / "lake"), left_on.settings.url

    finished(jobq("lake", "check", "--lake", lake))
    for _ in range(2):
        finished(jobq("lake", "ingest", "--lake", lake, "--once", "--rollup", "0s", "--url", url))
        stats = finished(jobq("lake", "stats", "--lake", lake, "--json")).splitlines()
        rows = {table["table"]: table["rows"] for table in map(json.loads, stats)}
        assert rows["events"] == left["events"] > left["events_in_lake"]
    finished(jobq("lake", "check", "--lake", lake))


@pytest.mark.one_server
def test_nothing_is_lost_when_workers_of_both_releases_share_a_queue_and_are_killed(
    client, server, previous, jobq, ledger
):
    """As in a rolling deploy: two workers of each release; children and a supervisor of each are killed."""
    dice = random.Random(10)
    shared = Queue("shared", client)
    shared.admin.events_level("all")
    words = (
        "worker",
        "--url",
        server.url,
        "--queues",
        "shared",
        "--processes",
        "2",
        "--lease",
        "2s",
        *WORK,
    )
    workers = [jobq(*words, root=root) for root in (previous, previous, ROOT, ROOT)]
    mids = [carry.options(mid=f"c{i}").enqueue(0.02).mid for i in range(600)]

    killed: list[int] = []
    for turn in range(12):
        until(lambda turn=turn: sum(word == "end" for word, *_ in lines(ledger)) > 40 * turn)
        victim = workers[turn % 4]
        pids = (
            [c.pid for c in psutil.Process(victim.pid).children()]
            if turn not in (5, 7)
            else [victim.pid]
        )
        if pids:
            killed.append(dice.choice(pids))
            os.kill(killed[-1], signal.SIGKILL)
        if turn in (5, 7):
            victim.wait(LIMIT_S)
            workers[turn % 4] = jobq(*words, root=ROOT if turn == 7 else previous)
    until(lambda: shared.admin.counts().messages == 0 or (shared.admin.collect() and False))

    ends = Counter(mid for word, mid, _ in lines(ledger) if word == "end")
    assert ends.keys() == set(mids)
    # What ran twice was held by a process that died after the work and before its report.
    assert sum(ends.values()) - len(mids) <= len(killed) * 64
    assert shared.admin.fsck() == []
    # One that was replaced late may still be starting: it hears signals once it has children.
    until(lambda: all(psutil.Process(worker.pid).children() for worker in workers))
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    for worker in workers:
        finished(worker)


@pytest.mark.one_server
def test_messages_of_flows_are_taken_and_run_by_a_worker_of_the_previous_release(
    client, server, previous, jobq, ledger
):
    shared = Queue("shared", client)
    shared.enqueue_members([("~f:1.rows.0", encode("carry", (0.0,)))])
    old = jobq("worker", "--url", server.url, "--queues", "shared", *WORK, root=previous)
    until(lambda: ["end", "~f:1.rows.0"] in [line[:2] for line in lines(ledger)])
    until(lambda: presence.workers(client))
    shared.flows_until = 0.0  # as in another process
    [added] = shared.enqueue_members([("~f:1.rows.1", encode("carry", (0.0,)))])
    assert added.action == "added"
    until(lambda: ["end", "~f:1.rows.1"] in [line[:2] for line in lines(ledger)])
    old.send_signal(signal.SIGTERM)
    finished(old)
    assert shared.admin.fsck() == []
