"""The command `jobq partitions` shows, makes and changes partitions."""

from __future__ import annotations

import pytest

from jobq.queue import presence
from jobq.queue.partitions import read_map
from jobq.queue.queue import Queue, queue_scripts
from jobq.queue.types import Ending


def test_partitions_are_made_and_shown_when_a_number_is_given(cli, client):
    Queue("low", client).enqueue(b"x")

    assert "isn't partitioned" in cli("partitions", "low").err
    shown = cli("partitions", "low", "2", "--json")

    assert shown.code == 0
    assert [(one["partition"], one["state"], one["waiting"]) for one in shown.records] == [
        ("low", "draining", 1),
        ("low/0", "current", 0),
        ("low/1", "current", 0),
    ]
    assert "low/1" in cli("partitions", "low").out


def test_commands_apply_to_all_partitions_when_they_name_the_queue(cli, client):
    cli("partitions", "low", "2")
    queue = Queue("low", client)
    queue.enqueue(b"x", mid="m1", delay=60)

    [counts] = cli("queues", "low", "--json").records
    assert (counts["queue"], counts["delayed"], counts["partitions"]) == ("low", 1, 2)
    assert cli("queues", "--json").records[0]["delayed"] == 1
    assert "2 partitions" in cli("queues").out
    each = cli("queues", "low", "--partitions", "--json").records
    assert [one["queue"] for one in each] == ["low", "low/0", "low/1"]
    assert sum(one["delayed"] for one in each[1:]) == 1
    assert [one["queue"] for one in cli("queues", "low/1", "--json").records] == ["low/1"]
    assert cli("cancel", "m1", "--queues", "low").code == 0
    assert cli("pause", "low").code == 0
    assert all(place.admin.counts().paused for place in (queue, *queue.partitions()))
    assert cli("resume", "low").code == 0
    assert not any(place.admin.counts().paused for place in (queue, *queue.partitions()))


def test_partitions_warns_when_the_queue_was_never_used(cli, client):
    Queue("low", client).enqueue(b"x")

    assert (
        "lwo was never used here; did you mean low? 'jobq queue delete lwo'"
        in cli("partitions", "lwo", "2").err
    )
    assert "never used" not in cli("partitions", "lwo", "3").err + cli("partitions", "low", "2").err
    assert cli("queue", "delete", "lwo").code == 0
    assert [one["queue"] for one in cli("queues", "--json").records] == ["low"]


def test_running_jobs_of_partitions_are_listed_when_their_queue_is_named(cli, client):
    runs = [presence.RunningJob(name, f"in {name}", 1) for name in ("low/1", "low", "slow/1")]
    queues = ["low", "low/1", "slow/1"]
    entry = {"queues": queues, "running": 3, "seen_at": client.clock_ms(), "lease_ms": 15_000}
    presence.put_worker(client, "w", entry)
    presence.put_running(client, "w", [presence.ChildEntry(4712, "working", 1, 7, tuple(runs))])

    assert {one["queue"] for one in cli("running", "low", "--json").records} == {"low", "low/1"}
    assert {one["queue"] for one in cli("running", "low/1", "--json").records} == {"low/1"}


def test_dead_messages_of_partitions_are_one_group_when_they_died_of_the_same_error(cli, client):
    cli("partitions", "low", "2")
    queue = Queue("low", client)
    for number in range(8):
        place = queue.enqueue(b"x", mid=f"m{number}").partition
        [message] = Queue(place, client).dequeue().messages
        end = Ending(mid=message.mid, token=message.token, outcome="dead", reason="Timeout: no")
        Queue(place, client).finish([end])

    groups, rows = cli("dead", "list", "low").out.split("\n\n")
    assert [line.split()[:2] for line in groups.splitlines()[1:]] == [["8", "low"]]
    assert "low/0" in rows and "low/1" in rows


def test_audit_says_once_that_enqueues_are_not_recorded_when_a_queue_has_partitions(cli):
    cli("partitions", "low", "2")
    said = cli("check", "audit", "low").err
    assert said.count("aren't recorded") == 1 and "events level all --queues low," in said


@pytest.mark.parametrize("verb", [("revive",), ("purge", "--yes")], ids=str)
def test_dead_messages_of_all_partitions_change_when_all_of_their_queue_are_chosen(
    cli, client, verb
):
    queue = Queue("low", client)
    for change in (0, 2, 3):
        if change:
            cli("partitions", "low", str(change))
        for number in range(4):
            place = queue.enqueue(b"x", mid=f"{change} {number}").partition or "low"
            [message] = Queue(place, client).dequeue().messages
            end = Ending(mid=message.mid, token=message.token, outcome="dead", reason="no")
            Queue(place, client).finish([end])

    assert cli("dead", verb[0], "--all", "--queues", "low,high", *verb[1:]).code == 2
    changed = cli("dead", verb[0], "--all", "--queues", "low", *verb[1:], "--json")

    assert changed.code == 0
    assert sum(one.get(f"{verb[0]}d", 0) for one in changed.records) == 12
    assert not any(place.admin.counts().dead for place in queue.alone())
    ready = {place.name: place.admin.counts().ready for place in queue.alone()}
    assert sum(ready.values()) == (12 if verb[0] == "revive" else 0)
    assert not any(ready[name] for name in ("low", "low/0", "low/1"))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("key", "set", "low", "--max", "1"), "less than 2 partitions"),
        (("partitions", "low/1", "2"), "ending with '/' and a number belongs to a partition"),
        (("partitions", "low", "0"), "0 is not in the range"),
    ],
)
def test_what_partitions_do_not_support_is_refused_when_it_is_used(cli, args, words):
    cli("partitions", "low", "2")

    refused = cli(*args)

    assert refused.code != 0
    assert words in refused.err


def test_doctor_warns_when_workers_declare_another_number(cli, client):
    now_ms = client.clock_ms()
    entry = {
        "queues": ["low"],
        "lease_ms": 15_000,
        "seen_at": now_ms,
        "partitions": {"low": 8, "high": 4, "wrong {}": 2, "odd": "x"},
    }
    presence.put_worker(client, "w", entry)
    cli("partitions", "low", "2")
    cli("partitions", "high", "4")

    found = [
        one for one in cli("check", "doctor", "--json").records if one["check"] == "partitions"
    ]

    assert [(one["level"], one["value"]) for one in found] == [
        ("warn", "queue low has 2 partitions, although workers' code declares partitions=8")
    ]
    assert found[0]["remedy"] == "jobq partitions low 8, or change the code"


def of_partitions(cli):
    found = cli("check", "doctor", "--json").records
    return [
        (one["level"], one["value"], one["remedy"]) for one in found if one["check"] == "partitions"
    ]


def test_doctor_names_a_partition_when_the_map_lacks_it_or_its_seal(cli, client):
    Queue("low", client).enqueue(b"x")
    known = read_map(client, "low")
    cli("partitions", "other", "2")
    assert of_partitions(cli) == []

    Queue("low", client).scripts["set_partitions"].run({"known": "", "map": str(known.after(2))})
    Queue("low/7", client).enqueue(b"x")
    Queue("gone/0", client).enqueue(b"x")

    assert of_partitions(cli) == [
        (
            "fail", "gone/0 has 1 message, but it isn't in the map of queue gone",
            "serve this partition until it is empty: jobq worker --import MODULE --queues gone/0",
        ),
        (
            "fail", "low/7 has 1 message, but it isn't in the map of queue low",
            "serve this partition until it is empty: jobq worker --import MODULE --queues low/7",
        ),
        (
            "warn", "the change of queue low to 2 partitions isn't finished: low isn't sealed",
            "jobq partitions low 2",
        ),
    ]  # fmt: skip
    cli("partitions", "low", "2")
    assert [level for level, *_ in of_partitions(cli)] == ["fail", "fail"]


def test_doctor_names_the_partition_when_it_has_most_of_the_ready_messages(cli, client):
    cli("partitions", "low", "4")
    queue = Queue("low", client)
    for _ in range(5):
        queue.enqueue_many([b"x"] * 240, key="acme")
    [busy] = [place for place in queue.partitions() if place.admin.counts().ready]

    assert of_partitions(cli) == [(
        "warn", f"{busy.name} has 1,200 of 1,200 ready messages in 4 partitions",
        "see which keys wait: jobq key list low",
    )]  # fmt: skip


def test_events_have_the_queue_and_its_partition_when_it_is_partitioned(cli, client):
    cli("partitions", "low", "2")
    queue = Queue("low", client)
    queue.admin.events_level("all")
    place = queue.enqueue(b"x", mid="m1").partition

    [event] = [one for one in cli("events", "tail", "low", "--json").records if one["mid"] == "m1"]
    assert (event["queue"], event["partition"], event["mid"]) == ("low", place, "m1")


def test_fsck_checks_all_partitions_when_the_queue_is_named(cli, client):
    cli("partitions", "low", "2")
    queue = Queue("low", client)
    broken = queue.partitions()[1]
    client.command("HSET", f"{broken.prefix}tokens", "ghost", "t")
    assert queue.admin.fsck() == []

    checked = cli("check", "fsck", "low", "--json")
    assert checked.code == 1
    assert {one["queue"] for one in checked.records if one.get("mid") == "ghost"} == {broken.name}


def test_a_setting_is_shown_once_when_it_applies_to_all_partitions(cli, client):
    cli("partitions", "low", "3")

    for words in (
        ("pause", "low"),
        ("resume", "low"),
        ("events", "level", "all", "--queues", "low"),
    ):
        assert [one["queue"] for one in cli(*words, "--json").records] == ["low"]
    assert [one["queue"] for one in cli("events", "maxlen", "--json").records] == ["low"]
    assert [one["queue"] for one in cli("pause", "low/1", "--json").records] == ["low/1"]
    assert [place.admin.counts().paused for place in Queue("low", client).partitions()] == [
        False,
        True,
        False,
    ]
    assert {place.admin.events_level() for place in Queue("low", client).partitions()} == {"all"}


def test_why_advises_a_worker_of_the_queue_when_the_message_is_in_a_partition(cli, client):
    cli("partitions", "low", "2")
    Queue("low", client).enqueue(b"x", mid="m1")

    assert cli("why", "m1").out.rstrip().endswith("jobq worker --import MODULE --queues low")


def test_queues_shows_a_partition_when_it_is_named_before_its_queue(cli, client):
    cli("partitions", "low", "2")
    named = cli("queues", "low/1", "low", "--partitions", "--json").records
    assert [record["queue"] for record in named] == ["low", "low/1", "low/0"]


def test_commands_do_not_take_partitions_for_missing_when_the_map_cannot_be_read(
    cli, client, redis
):
    cli("partitions", "low", "1")
    Queue("low", client).enqueue(b"x", mid="m1")
    redis.hset("jobq:{low}:partitions", "map", "no map")

    for args in ("pause low", "status m1 --queues low", "cancel m1 --queues low", "queue peek low"):
        shown = cli(*args.split())
        assert (args, shown.code) == (args, 4)
        assert "queue 'low' has an unreadable partition map" in shown.err
    assert redis.hget("jobq:{low}:meta", "paused") != b"1"


def test_queues_says_how_many_partitions_are_paused(cli, client):
    cli("partitions", "low", "2")
    cli("partitions", "low", "4")
    cli("pause", "low/3")

    [record] = cli("queues", "low", "--json").records
    assert (record["paused"], record["paused_partitions"]) == (True, 1)
    assert "4 partitions, paused in 1 of 4 partitions" in cli("queues", "low").out
    assert cli("queues", "low", "--partitions", "--json").records[4]["paused"]
    cli("pause", "low")
    shown = cli("queues", "low").out
    assert "4 partitions, paused" in shown and "paused in" not in shown
    assert "sample" not in cli("queues", "low", "--json").records[0]


def test_queue_delete_deletes_the_partitions_when_nothing_is_left(cli, client, redis):
    producer = Queue("low", client)
    for number in ("2", "3"):
        producer.enqueue(b"x")
        cli("partitions", "low", number)
    dead = producer.dequeue() if producer.admin.counts().ready else None
    assert dead is not None
    refused = cli("queue", "delete", "low", "high")
    assert refused.code == 1
    assert "low: not deleted: it holds 1 message" in refused.out
    cli("queue", "purge", "low", "--yes")
    assert (
        "low/0: not deleted: it is a partition of queue low" in cli("queue", "delete", "low/0").out
    )

    deleted = cli("queue", "delete", "low")

    assert (deleted.code, deleted.out) == (0, "low: deleted\n")
    assert cli("queues", "--json").records == []
    assert not read_map(client, "low").is_partitioned
    left = {key.decode().partition("}")[2] for key in redis.keys("jobq:{low/*")}
    assert {key.rpartition(":")[0] for key in left} <= {":call"}
    # A producer that knows the partitions follows, and so do later partitions.
    assert producer.enqueue(b"x", mid="m1").partition == "low"
    last = Queue("low", client).dequeue().messages[0].fence
    cli("partitions", "low", "2")
    assert producer.enqueue(b"y", mid="m2").partition in ("low/0", "low/1")
    handed = [place.dequeue().messages for place in producer.partitions()]
    assert [message.fence > last for messages in handed for message in messages] == [True]


def test_queue_delete_keeps_the_partitions_when_one_of_them_is_in_use(cli, client):
    cli("partitions", "low", "2")
    queue = Queue("low", client)
    place = queue.enqueue(b"x").partition

    refused = cli("queue", "delete", "low")

    assert refused.code == 1
    assert refused.out == f"low: not deleted: {place} holds 1 message, 0 dead, 0 in quarantine\n"
    assert queue.enqueue(b"x").action == "added"
    assert read_map(client, "low").newest.size == 2


def test_fsck_repairs_a_map_when_another_program_wrote_it(cli, client, redis):
    Queue("low", client).enqueue(b"x")
    cli("partitions", "low", "2")
    before = read_map(client, "low")
    assert cli("check", "fsck").code == 0
    redis.hset("jobq:{low}:partitions", "map", "1,2")

    assert "low: the map of partitions can't be read: 1,2" in cli("check", "fsck").out
    repaired = cli("check", "fsck", "--repair", "--yes")

    assert f"rebuilt: {before}" in repaired.out
    assert repaired.code == 0
    assert read_map(client, "low") == before
    redis.hset("jobq:{low}:partitions", "map", "1,2")
    assert cli("check", "fsck", "low", "--repair", "--yes").code
    assert cli("check", "fsck", "low").code == 0


def test_doctor_names_the_command_when_a_deletion_stopped_midway(cli, client):
    cli("partitions", "low", "2")
    queue_scripts(client, "queue", "low/0")["seal"].run({"epoch": 2})

    remedy = "jobq partitions low 2, or repeat jobq queue delete low"
    text = "a deletion of queue low stopped midway: low/0 rejects messages"
    assert of_partitions(cli) == [("fail", text, remedy)]
    assert cli("partitions", "low", "2").code == 0
    assert of_partitions(cli) == []
