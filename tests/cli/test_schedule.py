"""The commands of `jobq schedule`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.events import in_utc
from jobq.jobs.codec import decode
from jobq.jobs.ticks import tick_of
from jobq.queue import presence
from jobq.queue.queue import Queue
from jobq.schedules.definition import Schedule, encoded

MODULE = """
from jobq import job, schedule

@job(queue="low", name="shop.digest", timeout=90)
@schedule("30 2 * * *", tz="Europe/Berlin")
@schedule("0 7 * * *", name="morning")
@schedule(every="1m", name="often", missed="all", overlap="allow")
def digest(): ...
"""


@pytest.fixture
def module(bare: Path) -> str:
    (bare / "shop_of_schedules.py").write_text(MODULE)
    return "shop_of_schedules"


def test_next_prints_local_times(line: Any) -> None:
    ended = line("schedule", "next", "0 7 * * 1-5", "--tz", "Europe/Berlin", "-n", "3", "--json")

    times = [datetime.fromisoformat(record["local"]) for record in ended.records]
    assert [(at.hour, at.weekday() < 5) for at in times] == [(7, True)] * 3
    assert len(line("schedule", "next", "--every", "10m").out.splitlines()) == 5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("next", "0 7 * *"), "has 4 fields; write minute"),
        (("next",), "needs either a cron expression"),
        (("next", "@daily", "--tz", "Mars"), "can't be used as a time zone"),
        (("pause", "nobody"), "no schedule 'nobody'"),
        (("add", "a b", "x.y", "--every", "1m"), "without spaces"),
        (("add", "a", "x.y", "--every", "1m", "--overlap", "never"), "is not one of 'skip'"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_words(cli: Any, words: tuple[str, ...], says: str) -> None:
    ended = cli("schedule", *words)

    assert ended.code == 2
    assert says in ended.err


def test_lint_warns_of_what_modules_declare(line: Any, module: str) -> None:
    ended = line("schedule", "lint", "--import", module, "--json")

    assert ended.code == 1
    # Other tests of this process may have declared schedules.
    own = ("shop.digest", "morning", "often")
    warnings = [
        (row["schedule"], row["warning"]) for row in ended.records if row["schedule"] in own
    ]
    assert [name for name, _ in warnings] == ["shop.digest", "morning", "often", "often"]
    for (_, text), words in zip(
        warnings,
        ("02:30 doesn't exist in Europe/Berlin", "in UTC", "pile up", "missed='all'"),
        strict=True,
    ):
        assert words in text


def test_lint_warns_of_a_function_that_is_no_job(line: Any, bare: Path) -> None:
    module = bare / "forgetful_schedules.py"
    module.write_text("import jobq\n\n\n@jobq.schedule('@daily')\ndef lonely(): ...\n")
    ended = line("schedule", "lint", "--import", module.stem)
    assert ended.code == 1
    assert f"@schedule on forgetful_schedules.lonely ({module}:4) has no effect" in ended.out


def test_schedule_is_added_listed_paused_run_and_deleted(cli: Any, queue: Queue) -> None:
    added = cli("schedule", "add", "nightly", "x.y", "a", "n=2", "--cron", "@daily", "-q", "low")
    assert (added.code, added.out) == (0, "low: nightly added\n")
    [row] = cli("schedule", "list", "--json").records
    assert (row["queue"], row["schedule"], row["job"], row["rule"]) == (
        "low",
        "nightly",
        "x.y",
        "@daily",
    )
    assert (row["origin"], row["state"], row["last_at"]) == ("added", "no worker", None)
    assert datetime.fromtimestamp(row["next_at"] / 1000, UTC).hour == 0
    assert "nightly" in cli("schedule", "list").out

    assert cli("schedule", "pause", "nightly").out == "low: nightly paused\n"
    assert cli("schedule", "pause", "nightly").out == "low: nightly paused already\n"
    assert cli("schedule", "list", "--json").records[0]["state"] == "paused"
    assert cli("schedule", "resume", "nightly").code == 0

    mid = cli("schedule", "run-now", "nightly").out.strip()
    [message] = queue.dequeue(5).messages
    call = decode(message.content)
    tick = tick_of(call.headers)
    assert (message.mid, call.job, call.args, call.kwargs) == (mid, "x.y", ["a"], {"n": 2})
    assert tick is not None and tick.schedule == "nightly"
    [entry] = cli("schedule", "history", "nightly", "--json").records
    assert (entry["schedule"], entry["outcome"], entry["mid"]) == ("nightly", "enqueued", mid)
    assert mid in cli("schedule", "history").out

    assert cli("schedule", "delete", "nightly").out == "low: nightly deleted\n"
    assert cli("schedule", "list", "--json").records == []


def test_schedule_is_added_with_a_start_an_end_and_a_number_of_runs(cli: Any, queue: Queue) -> None:
    words = (
        "schedule",
        "add",
        "sale",
        "x.y",
        "-q",
        "low",
        "--every",
        "1h",
        "--start",
        "2126-11-27T08:00Z",
    )
    assert cli(*words, "--end", "2126-11-28T08:00Z", "--times", "3").code == 0
    [row] = cli("schedule", "list", "--json").records
    assert [in_utc(row[name]) for name in ("start_at", "end_at", "next_at")] == [
        f"2126-11-{day}T08:00:00.000Z" for day in (27, 28, 27)
    ]
    assert row["times"] == 3
    refused = cli(*words, "--end", "2126-11-26T08:00Z")
    assert refused.code == 2 and "ends before it starts" in refused.err
    assert "needs start=" in cli(*words[:8], "--times", "3").err


def test_schedule_of_code_is_changed_in_code(cli: Any, queue: Queue) -> None:
    queue.admin.schedule("declare", "s", '{"name":"s","job":"app.jobs.s","cron":"@daily"}')
    queue.register()

    refused = cli("schedule", "add", "s", "x.y", "--every", "1m", "-q", "low")
    assert (
        "schedule s is declared in the code of app.jobs.s; pause the schedule, or change that code"
        in refused.err
    )
    assert cli("schedule", "delete", "s").code == 2
    assert cli("schedule", "pause", "s").code == 0
    assert cli("schedule", "delete", "s", "--force").code == 0


def test_what_others_wrote_is_shown_and_stops_nothing(cli: Any, queue: Queue, redis: Any) -> None:
    queue.register()
    redis.hset(
        f"{queue.prefix}schedules",
        mapping={"good": 'a{"name":"good","job":"x","cron":"@daily"}', "bad": b"a\xff"},
    )
    redis.hset(f"{queue.prefix}ticks", "alone", "x")

    rows = {row["schedule"]: row["state"] for row in cli("schedule", "list", "--json").records}
    assert rows == {"good": "no worker", "bad": "unreadable", "alone": "no definition"}


def test_schedule_that_no_worker_declares_any_more_is_marked(
    cli: Any, queue: Queue, client: Client
) -> None:
    now = client.clock_ms()
    definition = '{"name":"%s","job":"%s","cron":"@hourly"}'
    queue.register()
    for name, job, since in (
        ("here", "x.here", 0), ("gone", "x.gone", 0), ("late", "x.here", 7_200_000), ("paused", "x.gone", 0),
    ):  # fmt: skip
        queue.admin.schedule("declare", name, definition % (name, job), now=now - since)
    queue.admin.schedule("pause", "paused")
    queue.admin.schedule("add", "added", definition % ("added", "x.gone"))

    def states() -> dict[str, str]:
        return {row["schedule"]: row["state"] for row in cli("schedule", "list", "--json").records}

    assert set(states().values()) == {"no worker", "paused"}
    presence.put_jobs(client, ["x.here"])
    facts = {
        "queues": ["low"], "slots": 1, "lease_ms": 15_000, "started_at": now, "seen_at": now,
        "jobs": presence.digest_of(["x.here"]),
    }  # fmt: skip
    presence.put_worker(client, "w", facts)

    assert states() == {
        "added": "unknown job", "gone": "undeclared", "here": "", "late": "undeclared", "paused": "paused",
    }  # fmt: skip
    queue.admin.pause()
    assert (states()["here"], states()["added"]) == ("queue paused", "unknown job")
    queue.admin.resume()
    found = [one for one in cli("check", "doctor", "--json").records if one["check"] == "schedules"]
    assert ["gone" in found[0]["value"], "late" in found[1]["value"], len(found)] == [True, True, 2]
    assert found[0]["remedy"].startswith("jobq schedule delete gone --queues low --force")
    for one in found:
        words = one["remedy"].partition(",")[0].split()[1:]
        assert cli(*words).code == 0
    assert set(states()) == {"added", "here", "paused"}
    presence.put_worker(client, "w", facts | {"jobs": "unknown"})
    assert states()["here"] == ""
    # The job still exists, but its schedule is no longer in the code.
    presence.put_worker(client, "w", facts | {"schedules": {"low": ["other"]}})
    assert states()["here"] == "undeclared"
    presence.put_worker(client, "w", facts | {"schedules": {"low": ["here"]}})
    assert states()["here"] == ""
    presence.put_worker(client, "w", facts | {"schedules": {"low": "here"}})  # no list
    assert states()["here"] == ""


def test_schedules_have_no_state_and_the_cause_is_printed_when_workers_cannot_be_read(
    cli: Any, queue: Queue, client: Client
) -> None:
    queue.register()
    queue.admin.schedule("add", "a", '{"name":"a","job":"x.a","cron":"@hourly"}')
    client.command("SET", "jobq:workers", "another type")
    listed = cli("schedule", "list", "--json")
    assert [row["state"] for row in listed.records] == [""]
    assert listed.code == 4 and "list of workers" in listed.err


def test_run_now_enqueues_as_the_module_of_the_job_declares(
    cli: Any, bare: Path, queue: Queue
) -> None:
    (bare / "shop_with_keys.py").write_text(
        "from jobq import job\n@job(queue='low', key='customer')\ndef digest(customer): ...\n"
    )
    one = Schedule(name="nightly", job="shop_with_keys.digest", every_ms=60_000, args=("acme",))
    queue.register()
    queue.admin.schedule("add", "nightly", encoded(one))
    assert cli("schedule", "run-now", "nightly").code == 0
    assert [row.key for row in queue.admin.iter_keys()] == ["acme"]
