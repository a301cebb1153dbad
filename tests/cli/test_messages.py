"""`jobq status`, `jobq queue peek`, `jobq cancel`."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.events import attempt_record
from jobq.queue.queue import Queue
from jobq.queue.types import Ending

CALL = b'{"job":"a.b","args":["secret"]}'


def test_status_finds_a_mid_in_whatever_queue_has_it(cli: Any, client: Any) -> None:
    Queue("high", client).enqueue(CALL, mid="m")
    Queue("low", client).enqueue(CALL, mid="other")
    assert cli("status", "m").out == "m: queued  queue high  job a.b\n"
    [record] = cli("status", "m", "--json").records
    assert (record["queue"], record["state"], record["attempts"]) == ("high", "queued", 0)


def test_status_of_an_unknown_mid_is_a_no(cli: Any, queue: Queue) -> None:
    queue.enqueue(CALL)
    ended = cli("status", "none", "--json")
    assert (ended.code, ended.records) == (
        1,
        [{"mid": "none", "queue": None, "state": "unknown"}],
    )
    assert cli("status", "none").out == (
        "none: not found: it was never enqueued here, or it ended long ago\n"
    )


def ended(queue: Queue, word: Any, **more: Any) -> None:
    """End the next attempt of m as a worker does."""
    [message] = queue.dequeue().messages
    record = attempt_record("a.b", message.attempt, 0, 1_500_000, 0, 0, "web-7:1")
    queue.finish([Ending(mid="m", token=message.token, outcome=word, record=record, **more)])


@pytest.mark.parametrize(
    ("word", "dequeued", "collected", "shown"),
    [("done", True, True, "done"), ("done", True, False, "done"), ("cancelled", False, True, "cancelled"),
     ("cancelled", True, False, "cancelled, id rejected")],
)  # fmt: skip
def test_status_shows_state_and_attempts_of_a_message_when_it_is_over(
    cli: Any, queue: Queue, word: str, dequeued: bool, collected: bool, shown: str
) -> None:
    queue.enqueue(CALL, mid="m")
    ended(queue, "retry", backoff=0)
    if word == "done":
        ended(queue, "done")
    else:
        if dequeued:
            queue.dequeue()
        queue.cancel("m")
    if collected:
        queue.admin.collect()
    asked = cli("status", "m")
    first, *attempts = asked.out.splitlines()
    assert asked.code == 0 and first.startswith(f"m: {shown}  queue low  ")
    assert ("id rejected until 2" in first) == (dequeued and word == "cancelled")
    [record] = cli("status", "m", "--json").records
    assert (record["state"], record["queue"], record["job"]) == (word, "low", "a.b")
    assert record["attempts"] == 1 + (word == "done")
    outcomes = ["retry", "done"] if word == "done" else ["retry"]
    assert [one["outcome"] for one in record["history"]] == outcomes
    assert [line.split("  ")[-1] for line in attempts] == outcomes


@pytest.mark.parametrize("verb", ["status", "why"])
def test_message_is_not_called_missing_when_the_events_cannot_be_read(
    cli: Any, queue: Queue, redis: Any, verb: str
) -> None:
    queue.enqueue(CALL)
    redis.set(f"{queue.prefix}events", "another type")
    shown = cli(verb, "none")
    assert shown.code not in (0, 1) and shown.out == ""
    assert "events: queue low has unreadable events" in shown.err


@pytest.mark.parametrize("verb", ["status", "why"])
def test_message_is_shown_or_not_called_missing_when_its_result_cannot_be_read(
    cli: Any, queue: Queue, redis: Any, verb: str
) -> None:
    queue.enqueue(CALL, mid="m")
    [message] = queue.dequeue().messages
    queue.finish([Ending(mid="m", token=message.token)])
    for mid in ("m", "none"):
        redis.set(queue.result_key(mid), "another type")
    shown = cli(verb, "m")
    assert shown.code == 0 and "done" in shown.out
    assert "result: can't be read: the server refused" in shown.out
    shown = cli(verb, "none")
    assert shown.code not in (0, 1) and shown.out == ""
    assert "result: queue low has an unreadable result" in shown.err


def test_status_shows_lock_and_progress_of_a_running_job(cli: Any, queue: Queue) -> None:
    queue.enqueue(CALL, mid="m")
    [message] = queue.dequeue().messages
    queue.progress("m", message.token, "0.5 half\x1b[2J")
    shown = cli("status", "m").out
    assert shown.startswith("m: running  queue low  attempts 1  lease ends 2")
    assert r"half\x1b[2J" in shown


def test_status_shows_what_the_next_attempt_reads(cli: Any, queue: Queue) -> None:
    queue.enqueue(CALL, mid="m")
    [message] = queue.dequeue().messages
    queue.progress("m", message.token, "half")
    assert "checkpoint" not in cli("status", "m").out
    queue.checkpoint("m", message.token, f'["{"x" * 300}"]')
    shown = cli("status", "m").out
    assert f'progress half  checkpoint ["{"x" * 198}…  job a.b' in shown
    [record] = cli("status", "m", "--json").records
    assert (record["progress"], len(record["checkpoint"])) == ("half", 304)


def test_messages_show_contents_only_when_asked(cli: Any, queue: Queue) -> None:
    queue.enqueue(CALL, mid="m")
    plain, whole = cli("queue", "peek"), cli("queue", "peek", "--content")
    assert "a.b" in plain.out and "secret" not in plain.out
    assert "secret" in whole.out
    assert "content" not in cli("queue", "peek", "--json").records[0]
    assert cli("queue", "peek", "--json", "--content").records[0]["content"] == CALL.decode()


def test_messages_escape_what_is_no_text(cli: Any, queue: Queue) -> None:
    queue.enqueue(b'{"job":"\x1b[2J"}\xff\x00', mid="m")
    assert r"\xff" in cli("queue", "peek", "--content").out
    assert "\x1b" not in cli("queue", "peek", "--content").out
    [record] = cli("queue", "peek", "--content", "--json").records
    assert record["content_base64"]


def test_messages_page_by_limit_and_offset_or_go_through_all(cli: Any, queue: Queue) -> None:
    queue.enqueue_many([(f"m{n}", CALL) for n in range(2300)])
    ended = cli("queue", "peek", "--limit", "2", "--offset", "5")
    assert [line.split()[1] for line in ended.out.splitlines()[1:]] == ["m5", "m6"]
    assert "low has more; add --offset 7 or --all" in ended.err
    assert len(cli("queue", "peek", "--all", "--json").records) == 2300
    assert len(cli("queue", "peek", "--all").out.splitlines()) == 2301


def test_messages_of_other_places(cli: Any, queue: Queue) -> None:
    queue.enqueue(CALL, mid="delayed", delay=3600)
    queue.enqueue(CALL, mid="running")
    queue.dequeue()
    assert [r["mid"] for r in cli("queue", "peek", "--place", "delayed", "--json").records] == [
        "delayed"
    ]
    assert [r["mid"] for r in cli("queue", "peek", "--place", "running", "--json").records] == [
        "running"
    ]


def test_cancel_takes_a_message_out(cli: Any, queue: Queue) -> None:
    queue.enqueue(CALL, mid="m")
    ended = cli("cancel", "m", "--json")
    assert (ended.code, ended.records) == (
        0,
        [{"mid": "m", "queue": "low", "action": "cancelled", "state": "cancelled"}],
    )
    again = cli("cancel", "m")
    assert (again.code, again.out) == (1, "m: already cancelled\n")


def test_cancel_says_how_a_message_ended_when_it_is_over(cli: Any, queue: Queue) -> None:
    for mid in ("done", "dead"):
        queue.enqueue(CALL, mid=mid)
    for message, outcome in zip(queue.dequeue(2).messages, ("done", "dead"), strict=True):
        queue.finish(
            [
                Ending(
                    mid=message.mid,
                    token=message.token,
                    outcome=outcome,
                    reason="on the block list",
                )
            ]
        )
    ended = cli("cancel", "done", "dead", "nobody")
    assert ended.code == 1
    assert ended.out.split("\n")[:3] == [
        "done: already done",
        "dead: already failed; to delete it, use jobq dead purge dead",
        "nobody: not found",
    ]
    assert "last error on the block list" in cli("status", "dead").out


def test_cancel_calls_no_message_missing_when_a_queue_cannot_be_read(
    cli: Any, client: Any, queue: Queue
) -> None:
    queue.enqueue(CALL, mid="m")
    Queue("broken", client).enqueue(CALL)
    client.command("SET", "jobq:{broken}:messages", "not a hash")
    ended = cli("cancel", "elsewhere")
    assert ended.code == 4 and "not found in the queues that can be read" in ended.out


def test_cancel_asks_which_queue_when_two_have_the_mid(cli: Any, client: Any) -> None:
    for name in ("low", "high"):
        Queue(name, client).enqueue(CALL, mid="m")
    ended = cli("cancel", "m")
    assert ended.code == 2 and "is in high, low" in ended.err
    assert cli("cancel", "m", "--queues", "low").code == 0
    assert Queue("high", client).status("m").word == "queued"


def test_status_prints_the_newest_log_that_is_kept_also_of_a_message_that_is_gone(cli, queue):
    queue.enqueue(b"{}", mid="waits")
    for mid in ("waits", "gone"):
        queue.store_log(mid, 1, b"old", 60)
        queue.store_log(mid, 2, "line 1\nline\x1b[2J 2 ü\n".encode(), 60)
    [held] = queue.dequeue().messages
    queue.release([(held.mid, held.token)])
    [held] = queue.dequeue().messages
    queue.finish([Ending(mid="waits", token=held.token, outcome="retry")])

    assert "log" not in cli("status", "waits").out
    gone = cli("status", "gone", "--log")
    assert gone.code == 0
    assert gone.out.splitlines()[1:] == [
        "    log of attempt 2:",
        "      line 1",
        "      line\\x1b[2J 2 ü",
    ]
    [waits] = cli("status", "waits", "--log", "--json").records
    assert (waits["log_of_attempt"], waits["log"]) == (1, "old"), "the second has not begun"
    other = cli("status", "other", "--log")
    assert other.code == 1 and "no log: its job" in other.out
