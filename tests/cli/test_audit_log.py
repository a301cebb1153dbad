"""Entries that commands write into the audit log, and `jobq audit-log`."""

from __future__ import annotations

import click
import pytest

from jobq.cli import app
from jobq.cli.options import Command
from jobq.queue.audit_log import Act, AuditLog
from jobq.queue.orders import this_user
from jobq.queue.queue import Queue
from jobq.topics import Topic
from tests import tools

#: Commands that are no operations: they only read, or they are how programs and workers use jobq.
OTHERS = set("""
    worker enqueue queues workers status why|queue peek|key list|dead list|dead show|limit list|events tail
    flow list|flow show|flow graph|schedule list|schedule next|schedule lint|schedule history
    metrics|audit-log|check doctor|check audit
    topic append|topic poll|topic read|topic list|topic groups|topic peek|topic describe|topic lag
    reliable push|reliable pop|reliable ack|reliable nack|reliable release|reliable extend|reliable recover
    reliable list|reliable inspect|reliable info|reliable length
    rsmq bridge|rsmq queue list|rsmq queue describe|rsmq message send|rsmq message receive|rsmq message pop
    rsmq message delete|rsmq message visibility|rsmq message peek
    ruby push|ruby queues|ruby peek|ruby workers
    spark doctor|spark shell|spark env|embedded status|functions check|completion|acl|migrate check|demo|chaos|report
""".replace("worker enqueue queues workers status why", "worker|enqueue|queues|workers|status|running|why")
    .strip().replace("\n    ", "|").split("|"))  # fmt: skip
#: They change a lake, another database or the program of the server; or they load the function that appends.
ELSEWHERE = {
    "functions load",
    "embedded stop",
    "outbox schema",
    "outbox relay",
    "outbox status",
    "outbox retry",
    "outbox purge",
}


def leaves(group: click.Group, path: tuple[str, ...] = ()):
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        if isinstance(found, click.Group):
            yield from leaves(found, (*path, name))
        else:
            yield " ".join((*path, name)), found


def test_every_command_that_changes_a_server_is_an_operation():
    found = dict(leaves(app.app))
    verbs = {
        path: command.operation for path, command in found.items() if isinstance(command, Command)
    }
    lakes = {path for path in verbs if path.startswith(("lake ", "web"))} - {"lake replay"}
    assert {path for path, verb in verbs.items() if not verb} - lakes == (
        OTHERS | ELSEWHERE
    ) & verbs.keys()
    assert all(
        "--actor" in {o for p in found[path].params for o in p.opts}
        for path, verb in verbs.items()
        if verb
    )
    words = [verb for verb in verbs.values() if verb]
    assert len(set(words)) == len(words)


@pytest.fixture
def entries(cli):
    """entries(): (verb, queue, filter, count, phase) of each entry, oldest first."""

    def read(*args):
        records = cli("audit-log", "--json", "--intents", *args).records
        return [
            tuple(one[name] for name in ("verb", "queue", "filter", "count", "phase"))
            for one in records[::-1]
        ]

    return read


#: Command line -> verb, queue, filter, count. The queue low has a message `m`, a dead one, and a schedule `nightly`.
LINES = [
    ("pause low", "pause", "low", "", None),
    ("resume low high", "resume", "low,high", "", None),
    ("cancel m --queues low", "cancel", "low", "mid:m", 1),
    ("queue purge low --yes", "queue-purge", "low", "", 1),
    ("queue delete high", "queue-delete", "high", "", None),
    ("key set low acme --max 2", "key-set", "low", "key:acme max:2", None),
    ("key hold low acme 30s", "key-hold", "low", "key:acme for:30s", None),
    ("dead revive --all -q low", "revive", "low", "place:dead", 1),
    ("dead revive --where reason=bro*", "revive", "*", "reason:bro*", 1),
    ("dead purge d --yes", "purge", "*", "dead:d", 1),
    ("dead retention --max 5 low", "dead-retention", "low", "max:5 age:as-before", None),
    ("limit set stripe 2/m", "limit-set", "", "limit:stripe rule:2/m", None),
    ("limit unset stripe", "limit-unset", "", "limit:stripe", None),
    ("limit hold stripe 30s", "limit-hold", "", "limit:stripe for:30s", None),
    ("events level all -q low", "events-level", "low", "level:all", None),
    ("events maxlen 1000", "events-maxlen", "*", "maxlen:1000", None),
    ("schedule pause nightly", "schedule-pause", "low", "schedule:nightly", None),
    ("schedule resume nightly", "schedule-resume", "low", "schedule:nightly", None),
    ("schedule delete nightly", "schedule-delete", "low", "schedule:nightly", None),
    ("topic subscribe orders -g c", "topic-subscribe", "", "topic:orders group:c", None),
    ("topic pause orders -g b", "topic-pause", "", "topic:orders group:b", None),
    ("topic resume orders -g b", "topic-resume", "", "topic:orders group:b", None),
    ("topic retention orders --max-count 5", "topic-retention", "", "topic:orders max-count:5", None),
    ("topic compaction orders on", "topic-compaction", "", "topic:orders switch:on", None),
    ("topic delete orders --yes", "topic-delete", "", "topic:orders", None),
    ("rsmq queue create -n mails", "rsmq-create", "", "rsmq:mails", None),
    ("reliable configure mails --max-deliveries 5", "reliable-configure", "", "reliable:mails max-deliveries:5", None),
    ("reliable clear mails --yes", "reliable-clear", "", "reliable:mails", None),
]  # fmt: skip


@pytest.fixture
def filled(client, kill_message):
    for name in ("low", "high"):
        Queue(name, client).register()
    queue = Queue("low", client)
    kill_message(queue, "d")
    queue.enqueue(b"x", mid="m")
    Topic("orders", client).group("b").subscribe()
    queue.admin.schedule("add", "nightly", '{"job":"a.b","cron":"0 3 * * *"}')


@pytest.mark.parametrize(
    ("words", "verb", "queue", "what", "count"), LINES, ids=lambda value: str(value)[:40]
)
def test_command_is_in_the_log_before_and_after(
    cli, filled, entries, words, verb, queue, what, count
):
    ended = cli(*words.split())
    assert (ended.code, "audit" in ended.err) in ((0, False), (1, False)), ended
    first, last = entries()
    assert (*first[:3], first[4]) == (verb, queue, what, "intent")
    assert last == (verb, queue, what, count, "done")


def test_command_that_only_shows_or_is_not_confirmed_leaves_no_entry(cli, filled, entries):
    for line in ("dead retention", "events level", "events maxlen", "key set low", "topic retention t", "check fsck",
                 "topic compaction t", "ruby claims --sidekiq x", "status m", "queue delete low"):  # fmt: skip
        cli(*line.split())
    assert cli("queue", "purge", "low", given="n\n").code == 1
    assert entries() == []


def test_log_says_who_and_how_it_failed(cli, filled, redis):
    assert cli("pause", "low", "--actor", "anna").code == 0
    assert cli("pause", "low", env={"JOBQ_ACTOR": "bert"}).code == 0
    redis.delete("jobq:{low}:meta")
    redis.set("jobq:{low}:meta", "x")
    assert cli("key", "set", "low", "acme", "--max", "2").code == 4
    assert cli("limit", "set", "stripe", "often").code == 2
    found = cli("audit-log", "--json").records
    assert [(one["who"], one["phase"]) for one in found] == [
        (this_user(), "refused"), (this_user(), "failed"), ("bert", "done"), ("anna", "done"),
    ]  # fmt: skip
    assert "'often'" in found[0]["note"] and "WRONGTYPE" in found[1]["note"]


def test_listing_asks_for_a_person_a_verb_a_queue_and_a_time(cli, filled, redis):
    assert "no entries" in cli("audit-log").err
    cli("pause", "low", "high", "--actor", "anna")
    cli("resume", "low", "--actor", "bert")
    cli("events", "maxlen", "1000", "--actor", "bert")
    redis.xadd("jobq:audit", {"who": "\x1b[31mred", "verb": "x"})

    def verbs(*words):
        return [one["verb"] for one in cli("audit-log", "--json", *words).records]

    assert verbs("--who", "anna") == ["pause"]
    assert verbs("--verb", "resume") == ["resume"]
    assert verbs("-q", "high") == ["events-maxlen", "pause"]
    assert verbs("-n", "2") == ["x", "events-maxlen"]
    assert verbs("--since", "0s") == []
    text = cli("audit-log").out
    assert "\x1b" not in text and "damaged" in text and "low,high" in text


def test_log_that_cannot_be_written_stops_no_command(cli, filled, redis):
    redis.set("jobq:audit", "x")
    ended = cli("pause", "low")
    assert (ended.code, ended.out) == (0, "low: paused\n")
    assert ended.err.count("not written to the audit log") == 1


def test_older_entries_come_from_a_lake_when_one_is_given(cli, client, tmp_path):
    tools.library("pyarrow")
    from jobq.pipeline.lake.audit_entries import keep_audit
    from jobq.pipeline.lake.lake import Lake

    lake, log = Lake.create(str(tmp_path / "lake")), AuditLog(client)
    for number in range(4):
        with log.performing(Act("anna", "cli", "pause", f"q{number}")):
            pass
    keep_audit(lake, client, source="eu")
    client.command("XTRIM", "jobq:audit", "MAXLEN", 3)
    of_eu = ("--lake", lake.store.uri, "--source", "eu")
    found = cli("audit-log", "--json", *of_eu).records
    assert [(one["queue"], one["source"]) for one in found] == [
        ("q3", "server"), ("q2", "server"), ("q1", "lake"), ("q0", "lake")
    ]  # fmt: skip
    assert [one["queue"] for one in cli("audit-log", "--json", "-n", "3", *of_eu).records] == [
        "q3", "q2", "q1"
    ]  # fmt: skip
    assert len(cli("audit-log", "--json", "--intents", *of_eu).records) == 8
    assert [
        one["queue"] for one in cli("audit-log", "--json", "--queues", "q0", *of_eu).records
    ] == ["q0"]
    assert cli("audit-log", "--json", "--since", "0s", *of_eu).records == []
    table = cli("audit-log", *of_eu).out.splitlines()
    assert table[0].split()[-1] == "source" and table[-1].split()[-1] == "lake"
    # Another server of the lake has no such entries; without a lake, all are at the server.
    assert len(cli("audit-log", "--json", "--lake", lake.store.uri).records) == 2
    assert cli("audit-log", "--json").records[0]["source"] == "server"
    assert "is not a lake" in cli("audit-log", "--lake", str(tmp_path / "no")).err
