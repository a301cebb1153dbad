"""The audit log: what is written, who may write it, and whatever else is in the stream."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import astuple

from jobq.client.functions import scripts
from jobq.errors import ConfigError, JobqError, ScriptError
from jobq.queue.audit_log import Act, AuditLog, without_ended_intents
from tests import hostile
from tests.hostile import Call, Raw
from tests.security.logins import logins

SCRIPTS = {script.name: script for script in scripts() if script.area == "audit"}
ANNA = Act("anna", "operate", "pause", "low,high", "job:a.b", 2, "op-1", "a note")


@pytest.fixture
def good(client: Any) -> dict[str, Call]:
    AuditLog(client).append(ANNA, "intent")
    words = ("anna", "operate", "pause", "low", "job:a", "2", "op-1", "done", "a note")
    return {"append": Call(("jobq:audit",), words, (5,))}


@pytest.fixture
def raw(redis: Any) -> Raw:
    return Raw(redis)


(
    test_every_script_has_a_good_call,
    test_script_changes_nothing_when_it_refuses_its_arguments_or_keys,
    test_no_script_raises_after_a_write_when_stored_values_are_corrupt,
) = hostile.tests_of(SCRIPTS)


def test_entries_come_back_as_they_were_written_newest_first(client):
    log = AuditLog(client)
    first, second = log.append(ANNA, "intent"), log.append(ANNA._replace(number=None), "done")
    newest, oldest = log.page()
    assert (oldest.entry_id, newest.entry_id) == (first, second)
    assert astuple(oldest)[2:] == (
        "anna",
        "operate",
        "pause",
        "low,high",
        "job:a.b",
        2,
        "op-1",
        "intent",
        "a note",
        False,
    )
    assert (newest.phase, newest.number) == ("done", None)
    assert log.page(second) == [oldest]
    assert log.length() == 2
    for before, limit in (("+", 1), ("x", 1), ("", 0), ("", 1001)):
        with pytest.raises(ConfigError):
            log.page(before, limit)


def test_long_fields_are_cut_between_characters_and_passwords_are_masked(client):
    log = AuditLog(client)
    log.append(
        Act("ä" * 150, "r" * 99, "v" * 99, note="redis://u:secret@host " + "é" * 2000), "failed"
    )
    [entry] = log.page()
    assert entry.who == "ä" * 100
    assert "secret" not in entry.note and len(entry.note.encode()) <= 2000
    assert not entry.damaged


def test_operation_writes_an_intent_and_how_it_ended(client):
    log = AuditLog(client)
    with log.performing(ANNA._replace(op="")) as performed:
        performed.set(number=7)
    with pytest.raises(KeyError), log.performing(ANNA):
        raise KeyError("x")
    with pytest.raises(ConfigError), log.performing(ANNA):
        raise ConfigError("not so")
    found = log.page()
    assert [one.phase for one in found] == [
        "refused",
        "intent",
        "failed",
        "intent",
        "done",
        "intent",
    ]
    assert [one.number for one in found[-2:]] == [7, 2]
    assert found[-1].op == found[-2].op != "op-1"
    assert (found[0].note, found[2].note) == ("not so", "'x'")
    assert [one.phase for one in without_ended_intents(iter(found))] == [
        "refused",
        "failed",
        "done",
    ]


def test_nothing_happens_without_an_entry_unless_the_caller_says_so(client, redis):
    redis.set("jobq:audit", "x")
    log, done, lost = AuditLog(client), [], []
    with pytest.raises(ScriptError), log.performing(ANNA):
        done.append(1)
    assert done == []
    with log.performing(ANNA, lost.append):
        done.append(1)
    assert done == [1] and len(lost) == 2


def test_entry_is_written_while_the_memory_of_the_server_is_full(client, redis):
    redis.config_set("maxmemory", 1)
    try:
        AuditLog(client).append(ANNA, "done")
    finally:
        redis.config_set("maxmemory", 0)
    assert AuditLog(client).length() == 1


@pytest.mark.one_server
def test_log_keeps_about_a_hundred_thousand_entries(client, redis):
    pipe = redis.pipeline(transaction=False)
    for _ in range(102_000):
        pipe.xadd("jobq:audit", {"who": "x"})
    pipe.execute()
    AuditLog(client).append(ANNA, "done")
    assert 100_000 <= redis.xlen("jobq:audit") < 100_200


@pytest.mark.parametrize(
    "fields",
    [
        {"x": "y"},
        {b"who": b"\xff", "verb": "pause", "phase": "done", "more": "x"},
        {"who": "a", "verb": "b", "phase": "c", "count": "1e9"},
        {"who": "a", "verb": "b", "phase": "c", "count": "9" * 400},
        {"who": "a" * 5000, "verb": "b", "phase": "c"},
    ],
)
def test_entry_of_another_program_is_shown_as_damaged_and_hides_no_other(client, redis, fields):
    log = AuditLog(client)
    log.append(ANNA, "done")
    redis.xadd("jobq:audit", fields)
    log.append(ANNA, "done")
    assert [one.damaged for one in log.newest(10)] == [False, True, False]


def test_operator_may_append_and_nobody_may_change_what_is_there(server, redis, client, capsys):
    AuditLog(client).append(ANNA, "done")
    with logins(server, redis, client, capsys) as login:
        for role, reads, appends in (
            ("operator", True, True), ("dashboard", True, False), ("worker", False, False),
            ("producer", False, False), ("metrics", False, False),
        ):  # fmt: skip
            log = AuditLog(login(role))
            may = []
            for call in (log.page, lambda log=log: log.append(ANNA, "done")):
                try:
                    call()
                    may.append(True)
                except JobqError:
                    may.append(False)
            assert may == [reads, appends], role
            for command in (
                ("DEL", "jobq:audit"), ("UNLINK", "jobq:audit"), ("XTRIM", "jobq:audit", "MAXLEN", "0"),
                ("XDEL", "jobq:audit", "0-1"), ("XSETID", "jobq:audit", "0-1"), ("EXPIRE", "jobq:audit", "1"),
                ("RENAME", "jobq:audit", "jobq:{x}:events"),
            ):  # fmt: skip
                refusal = redis.execute_command("ACL", "DRYRUN", "shop", *command)
                assert b"permission" in refusal, (role, command)
