"""Entries of the audit log get into the lake once each, whatever else is in the stream."""

from __future__ import annotations

import pytest

from jobq.errors import ScriptError
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import erase, inspection, upkeep
from jobq.pipeline.lake.audit_entries import keep_audit
from jobq.pipeline.lake.ingest import Ingest, IngestOptions, one_round
from jobq.queue.audit_log import Act, AuditLog
from tests.pipeline.lake.conftest import rows

KEY = "jobq:audit"


def test_entries_are_kept_once_and_stay_when_the_server_has_dropped_them(lake, valkey_client):
    log = AuditLog(valkey_client)
    log.append(Act("anna", "cli", "revive", "low", "arg.customer:77 job:app.send", 3), "done")
    ingest = Ingest(lake, valkey_client, Engine("local"), IngestOptions(audit_log=True))
    found = one_round(ingest, print, lambda: False)
    assert found.audit == 1 and not found.is_empty
    assert one_round(ingest, print, lambda: False).is_empty
    for who in ("ben", "carl"):
        log.append(Act(who, "cli", "pause", "low"), "done")
    kept = valkey_client.command("XRANGE", KEY, "-", "+")
    assert keep_audit(lake, valkey_client) == 2
    for entry_id, _ in kept[:2]:
        valkey_client.command("XDEL", KEY, entry_id)
    assert keep_audit(lake, valkey_client) == 0
    # The stream is restored from a backup, and continues.
    valkey_client.command("DEL", KEY)
    for entry_id, fields in kept[1:]:
        valkey_client.command("XADD", KEY, entry_id, *fields)
    log.append(Act("dora", "cli", "resume", "low"), "done")
    assert keep_audit(lake, valkey_client) == 1
    assert keep_audit(lake, valkey_client, source="eu") == 3  # as if it were another server
    upkeep.compact(lake)
    stored = [row for row in rows(lake, "audit") if row["log"] == "audit"]
    assert [(row["who"], row["number"]) for row in sorted(stored, key=lambda row: row["at"])] == [
        ("anna", 3), ("ben", None), ("carl", None), ("dora", None)
    ]  # fmt: skip
    assert {row["filter"] for row in stored} == {"arg.customer:[hidden] job:app.send", ""}
    assert not [one for one in inspection.check(lake) if one.level == "fail"]


def test_an_ingest_reads_the_audit_log_only_if_it_is_asked_to(lake, valkey_client):
    AuditLog(valkey_client).append(Act("anna", "cli", "pause", "low"), "done")
    assert one_round(Ingest(lake, valkey_client, Engine("local")), print, lambda: False).is_empty
    assert lake.table("audit") is None


def test_an_erased_mid_is_named_in_no_entry_of_the_audit_log(lake, valkey_client):
    log = AuditLog(valkey_client)
    told = [
        ("low", "mid:order-1", "mid:[erased]"),
        ("low", "order-1", "[erased]"),
        ("low,high", 'job:app.send mid:"order 2"', "job:app.send mid:[erased]"),
        ("high", "mid:order-1 mid:order-10", "mid:order-1 mid:order-10"),
        ("", "/queues/low/messages/order-1", "/queues/low/messages/[erased]"),
    ]
    for queue, what, _ in told:
        log.append(Act("anna", "cli", "revive", queue, what, 1, note=f"at {what}"), "done")
    assert keep_audit(lake, valkey_client) == 5
    # The source's queue `low` is a different queue.
    assert keep_audit(lake, valkey_client, source="eu") == 5
    chosen = [erase.Erasable("mid", "low", "order-1"), erase.Erasable("mid", None, "order 2")]
    assert erase.counted(lake, Engine("local"), chosen)["audit"] == 5
    erase.begin(lake, chosen, "mid")
    assert erase.finish(lake, Engine("local"))["audit"] == 5
    log.append(Act("ben", "cli", "purge", "low", "mid:order-1"), "done")
    assert keep_audit(lake, valkey_client) == 1
    stored = sorted(rows(lake, "audit"), key=lambda row: (row["log"], row["at"], row["entry_id"]))
    assert [row["filter"] for row in stored] == [
        *(after for _, _, after in told), "mid:[erased]",
        *(what for queue, what, _ in told[:2]), told[2][2], told[3][2], told[4][1],
    ]  # fmt: skip
    assert [row["note"] for row in stored[:5]] == [f"at {after}" for _, _, after in told]
    assert [row["who"] for row in stored[:6]] == ["anna"] * 5 + ["ben"]
    assert not [one for one in inspection.check(lake) if one.level == "fail"]


def test_hostile_entries_are_kept_as_damaged_and_trimmed_ones_are_counted(lake, valkey_client):
    log = AuditLog(valkey_client)
    log.append(Act("anna", "cli", "pause", "low"), "done")
    assert keep_audit(lake, valkey_client) == 1
    for number in range(5):
        log.append(Act("anna", "cli", "pause", f"q{number}"), "done")
    valkey_client.command("XADD", KEY, "*", b"\xff", b"\x00" * 3000, "count", "9" * 30)
    valkey_client.command("XADD", KEY, f"{2**64 - 2}-{2**64 - 1}", "who", b"\xfe", "verb", "")
    valkey_client.command("XTRIM", KEY, "MAXLEN", 2)
    assert keep_audit(lake, valkey_client) == 2
    assert keep_audit(lake, valkey_client) == 0
    assert [row["damaged"] for row in rows(lake, "audit")].count(True) == 2
    found = list(inspection.check(lake))
    assert not [one for one in found if one.level == "fail"]
    assert "5 entries were dropped" in next(one.text for one in found if one.level == "note")
    valkey_client.command("SET", KEY, "of another type")
    with pytest.raises(ScriptError):
        keep_audit(lake, valkey_client)
