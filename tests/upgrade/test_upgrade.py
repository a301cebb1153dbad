"""This release reads what earlier ones wrote, and what it writes itself."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from jobq.flows.run import FlowRun
from jobq.protocols.reliable import ReliableQueue
from jobq.protocols.rsmq import Rsmq
from jobq.queue.queue import Queue
from jobq.topics import Topic
from tests.lifecycle.conftest import until
from tests.upgrade.leave import CODEC_KEYS

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


def test_worker_runs_every_message_when_an_earlier_release_wrote_it(left, jobq, ledger):
    letters, sealed, paused = (Queue(name, left.client) for name in ("letters", "sealed", "paused"))
    assert letters.admin.fsck() == []
    url = left.client.settings.url

    worker = jobq("worker", "--url", url, "--queues", "letters,paused", *WORK)
    until(lambda: {mid for _, mid, _ in lines(ledger)} >= left.wanted["runs"].keys())
    until(lambda: FlowRun("trip", "1", client=left.client).status().state == "done")
    worker.send_signal(signal.SIGTERM)
    finished(worker)
    finished(jobq(
        "worker", "--url", url, "--queues", "sealed", "--burst", *WORK, JOBQ_CODEC="sign", JOBQ_CODEC_KEYS=CODEC_KEYS
    ))  # fmt: skip

    ran = {mid: word.partition("-")[2] for word, mid, _ in lines(ledger)}
    assert ran == left.wanted["runs"] | {"sealed": "sealed"}
    assert sealed.admin.counts().messages == 0
    assert [letters.status(mid).word for mid in left.wanted["waits"]] == ["queued-with-backoff"]
    assert [paused.status("paused").word, paused.admin.counts().messages] == ["queued", 1]
    assert letters.admin.fsck() == []


def test_dead_message_is_revived_when_an_earlier_release_buried_it(left, jobq, ledger):
    letters = Queue("letters", left.client)
    buried = letters.admin.dead()
    assert [one.mid for one in buried] == left.wanted["dead"]

    letters.admin.revive(*(one.dead_id for one in buried))
    jobq("worker", "--url", left.client.settings.url, "--queues", "letters", *WORK)
    until(lambda: ["delivered-dead", "dead"] in [line[:2] for line in lines(ledger)])


def test_other_queues_give_what_waits_when_an_earlier_release_wrote_it(left):
    with Topic("readings", left.client).reader("bills") as reader:
        batch = reader.poll(100)
        assert [m.content.decode() for m in batch.messages] == left.wanted["unread"]
        assert {m.headers["unit"] for m in batch.messages} == {"kWh"}
        reader.commit(batch)

    mails = Rsmq(left.client)
    until(lambda: mails.counts("mails").visible == 3)
    received = {m.message: m.rc for m in mails.receive_messages("mails", 10)}
    assert received == {"one": 2, "two": 1, "three": 1}

    parcels = ReliableQueue(left.client)
    assert [(r.content, r.deliveries) for r in parcels.recover("parcels", 9, 0)] == [(b"red", 2)]
    assert [p.content for p in parcels.pop(9, 0, "parcels")] == [b"green", b"blue"]


@pytest.mark.one_server
def test_lake_goes_on_when_an_earlier_release_began_it(left, jobq, tmp_path):
    lake, url = left.lake(tmp_path), left.client.settings.url

    finished(jobq("lake", "check", "--lake", lake))
    shown = finished(
        jobq("report", "dead", "--lake", lake, "--since", "2026-01-01T00:00Z", "--json")
    )
    rows = json.loads(shown.splitlines()[0])["rows"]
    assert [(row["queue"], row["examples"]) for row in rows] == [("letters", *left.wanted["dead"])]
    for _ in range(2):
        finished(jobq("lake", "ingest", "--lake", lake, "--once", "--rollup", "0s", "--url", url))
        stats = finished(jobq("lake", "stats", "--lake", lake, "--json")).splitlines()
        counts = {table["table"]: table["rows"] for table in map(json.loads, stats)}
        assert counts["events"] == left.wanted["events"] > left.wanted["events_in_lake"]
    finished(jobq("lake", "check", "--lake", lake))
