"""`jobq flow`, and texts about flows in other commands."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.flows import keys
from jobq.flows.state import Edge
from jobq.flows.store import FlowStore
from jobq.flows.types import FlowChange, StoredFlow, StoredStep
from jobq.jobs.codec import encode
from jobq.queue import presence
from jobq.queue.directory import register_queues
from jobq.queue.queue import Queue
from jobq.queue.types import Ending

pytestmark = pytest.mark.usefixtures("run_ids")
CALL = encode("app.step", enqueued_at=1)


def begun(client: Any, flow: str, *changes: FlowChange) -> FlowStore:
    """A flow: `rows` of queue low, then `stats` and `alert`, then `mail`."""
    store = FlowStore(client, flow)
    steps = (
        StoredStep("rows", "step", "low", call=CALL),
        StoredStep("stats", "step", "pdf", (Edge("rows"),), call=CALL),
        StoredStep("alert", "step", "low", (Edge("rows", "failed"),), call=CALL),
        StoredStep("mail", "step", "low", (Edge("stats"),), call=CALL),
    )
    assert store.create(StoredFlow(steps, "hash", "low", 60_000)) == "created"
    client.command("ZADD", keys.flow_names(client.namespace), client.clock_ms(), flow)
    store.sent(store.apply("qlow", [FlowChange("begin")]).todo)
    if changes:
        store.sent(store.apply("qlow", changes).todo)
    return store


def test_list_says_how_far_flows_are(cli, client):
    assert "no flows here" in cli("flow", "list").err
    begun(client, "import:1", FlowChange("done", "rows"))
    begun(client, "import:2", FlowChange("dead", "rows"))
    begun(client, "other:1")
    records = cli("flow", "list", "--json").records
    assert {(one["flow"], one["state"], one["steps"], one["members"], one["remark"]) for one in records} == {
        ("import:1", "running", "2/4", "1/2", ""), ("import:2", "running", "3/4", "1/2", "1 dead"),
        ("other:1", "running", "0/4", "0/1", ""),
    }  # fmt: skip
    assert [one["flow"] for one in cli("flow", "list", "--name", "other", "--json").records] == [
        "other:1"
    ]
    assert cli("flow", "list", "--state", "failed", "--json").records == []
    shown = cli("flow", "list").out.splitlines()
    assert shown[0].split() == ["flow", "state", "steps", "members", "started", "took"]


def test_show_says_what_a_flow_waits_for(cli, client):
    begun(client, "import:1", FlowChange("dead", "rows", detail=b"ValueError: x\nTraceback"))
    shown = cli("flow", "show", "import:1").out
    assert "import:1: running, 3 of 4 steps" in shown
    assert "skipped, because rows is failed" in shown
    assert "waits for:\n  step alert (queue low)\n  no worker serves queue 'low'\n" in shown
    assert "failed:\n  ~import:1.r1.rows.0: ValueError: x\n" in shown
    [record] = cli("flow", "show", "import:1", "--json").records
    assert [(one["step"], one["state"]) for one in record["steps"]] == [
        ("rows", "failed"), ("stats", "skipped"), ("alert", "running"), ("mail", "skipped"),
    ]  # fmt: skip
    assert record["waits_for"] == [
        {"step": "alert", "code": "member", "sentence": "step alert (queue low)"}
    ]
    assert list(record["unserved"]) == ["low"]
    refused = cli("flow", "show", "import:3")
    assert refused.code == 2
    assert "did you mean 'import:1'" in refused.err


def test_graph_is_printed_in_three_forms(cli, client):
    begun(client, "import:1", FlowChange("done", "rows"))
    assert cli("flow", "graph", "import:1").out.splitlines() == [
        "1  rows (done)", "2  stats (running)  <- rows", "2  alert (skipped)  <- rows (failed)",
        "3  mail (waiting)  <- stats",
    ]  # fmt: skip
    mermaid = cli("flow", "graph", "import:1", "--format", "mermaid").out
    assert 's0["rows: done"]' in mermaid and "s0 -- failed --> s2" in mermaid
    assert '"stats" -> "mail";' in cli("flow", "graph", "import:1", "--format", "dot").out


def test_why_of_a_step_that_is_not_enqueued_is_its_flow(cli, client):
    begun(client, "import:1")
    found = cli("why", "~import:1.r1.mail.0")
    assert found.code == 0
    assert "waits for 1 of 1 step of flow import:1: stats" in found.out
    assert (
        cli("why", "~import:1.r1.rows.0", "--json").records[0]["reasons"][0]["code"]
        == "flow_running"
    )
    # A person needn't know the run id.
    assert cli("why", "~import:1.mail.0").out == found.out
    assert cli("why", "~import:1.r0.mail.0").code == 1  # of an earlier run
    assert cli("why", "~import:2.r1.rows.0").code == 1
    assert "never started, or it ended and was deleted" in cli("why", "~import:2.r1.rows.0").out


def test_doctor_warns_of_entries_for_flows_that_nobody_takes(cli, client, monkeypatch):
    Queue("low", client).announce("look", "import:1")
    assert not [one for one in cli("check", "doctor", "--json").records if one["check"] == "flows"]
    monkeypatch.setattr("jobq.cli.check.LATE_S", -1.0)
    [found] = [one for one in cli("check", "doctor", "--json").records if one["check"] == "flows"]
    assert (found["level"], found["value"][:40]) == (
        "warn",
        "queue low: 1 result waits for delivery t",
    )
    monkeypatch.setattr("jobq.cli.check.MAX_ENTRIES", 0)
    [found] = [one for one in cli("check", "doctor", "--json").records if one["check"] == "flows"]
    assert found["level"] == "fail" and "blocked until fewer wait" in found["value"]


@pytest.fixture
def approved(client):
    """Start a flow that waits for a signal, followed by `mail`."""
    register_queues(client, ["low"])
    store = FlowStore(client, "import:1")
    steps = (
        StoredStep("approved", "wait", "low"),
        StoredStep("mail", "step", "low", (Edge("approved"),), call=encode("mail", enqueued_at=1)),
    )
    assert store.create(StoredFlow(steps, "hash", "low", 60_000)) == "created"
    client.command("ZADD", keys.flow_names(client.namespace), 1, "import:1")
    store.sent(store.apply("qlow", [FlowChange("begin")]).todo)
    return store


def test_signal_ends_a_wait(cli, client, approved):
    shown = cli("flow", "show", "import:1").out
    assert "waits for:\n  a signal for approved\n" in shown
    said = cli("flow", "signal", "import:1", "approved", '{"by": "ann"}', "--actor", "ann")
    assert (said.code, said.out) == (0, "import:1: approved was signalled\n")
    assert approved.results(["approved:0"]) == {"approved:0": b'{"ok":{"by":"ann"}}'}
    [record] = cli("flow", "show", "import:1", "--json").records
    assert [one["state"] for one in record["steps"]] == ["done", "running"]
    [entry] = cli("audit-log", "--json").records
    assert (entry["verb"], entry["filter"], entry["who"]) == (
        "flow-signal",
        "flow:import:1 step:approved",
        "ann",
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["signal", "import:1", "mail"], "has no wait named 'mail'; it has approved"),
        (["signal", "import:1", "approved", "yes"], "value 'yes' is not JSON"),
        (["retry", "import:1", "none"], "has no step 'none'; it has approved, mail"),
        (["cancel", "import:2", "--yes"], "did you mean 'import:1'"),
        (
            ["delete", "import:2"],
            "there is no flow 'import:2', or it ended and was deleted; did you",
        ),
        (
            ["delete", "nothing"],
            "'nothing' is not the id of a flow, which is name:id with up to 64 ",
        ),
        (["check", "import:1", "import:\udcff"], r"'import:\udcff' is not the id of a flow"),
        (
            ["show", ""],
            "any of _:@+-; the name may also contain dots; jobq flow list shows the existing flows",
        ),
        (
            ["check", "import:" + "1" * 64],
            "is not the id of a flow, which is name:id with up to 64",
        ),
    ],
)
def test_bad_words_are_refused(cli, approved, words, says):
    refused = cli("flow", *words)
    assert refused.code == 2
    assert says in refused.err


def test_cancelled_flow_can_be_deleted(cli, client, approved):
    kept = cli("flow", "delete", "import:1")
    assert (kept.code, kept.out) == (1, "import:1 is running; cancel it first\n")
    assert cli("flow", "cancel", "import:1").code == 1  # nobody confirms
    assert (
        cli("flow", "cancel", "import:1", "--yes").out
        == "import:1: cancelled; no more messages are sent\n"
    )
    again = cli("flow", "cancel", "import:1", "--yes")
    assert (again.code, again.out) == (1, "import:1 is cancelled already\n")
    assert cli("flow", "delete", "import:1").out == "import:1: deleted\n"
    assert cli("flow", "list", "--json").records == []
    assert approved.facts() is None


def test_retry_runs_the_dead_again(cli, client):
    register_queues(client, ["low"])
    low = Queue("low", client)
    store = FlowStore(client, "import:1")
    call = encode("mail", enqueued_at=1)
    steps = (StoredStep("mail", "step", "low", call=call),)
    assert store.create(StoredFlow(steps, "hash", "low", 60_000)) == "created"
    low.announce("begin", "import:1")
    assert "2 flows" not in cli("flow", "check").err
    [message] = low.dequeue(1).messages
    low.finish(
        [Ending(mid=message.mid, token=message.token, outcome="dead", reason="ValueError: x")]
    )
    assert cli("flow", "check", "import:1").out == (
        "queue low: 1 entry delivered to flows\nimport:1: failed\n"
    )
    assert "failed:\n  ~import:1.r1.mail.0: ValueError: x\n" in cli("flow", "show", "import:1").out
    why = cli("why", "~import:1.r1.mail.0").out
    assert "jobq flow retry import:1 mail" in why
    done = cli("flow", "retry", "import:1")
    assert (done.code, done.out) == (0, "import:1: 1 member will run again\n")
    assert [one.mid for one in low.dequeue(1).messages] == ["~import:1.r1.mail.0"]
    assert cli("flow", "retry", "import:1").code == 1


def test_retry_says_how_many_can_not_run_again(cli, client):
    low = Queue("low", client)
    register_queues(client, ["low"])
    store = FlowStore(client, "import:1")
    store.create(
        StoredFlow((StoredStep("rows", "map", "low", source="stream"),), "hash", "low", 60_000)
    )
    low.announce("begin", "import:1")
    cli("flow", "check")
    store.reserve("rows", 0, 3)
    low.enqueue_members([(f"~import:1.r1.rows.{number}", CALL) for number in range(3)])
    store.seal("rows", 1)
    messages = low.dequeue(3).messages
    low.finish(
        [Ending(mid=one.mid, token=one.token, outcome="dead", reason="x") for one in messages]
    )
    low.admin.purge(*(one.dead_id for one in low.admin.dead() if one.mid.endswith((".0", ".2"))))
    cli("flow", "check")
    done = cli("flow", "retry", "import:1", "rows")
    assert (done.code, done.out) == (
        0, "import:1: 1 member will run again; 2 others can't, because they were purged or have expired\n"
    )  # fmt: skip
    shown = cli("flow", "show", "import:1").out
    assert (
        "~import:1.r1.rows.2: its message was purged or has expired, so it can't be retried"
        in shown
    )


def test_check_reports_members_without_a_trace(cli, client):
    begun(client, "import:1")
    register_queues(client, ["low"])
    found = cli("flow", "check")
    assert (found.code, found.out) == (
        1,
        "import:1: running; no trace of 1 member: ~import:1.r1.rows.0\n",
    )
    assert found.err == "1 flow checked\n"
    done = cli("flow", "check", "--lost", "done")
    assert (done.code, done.out) == (0, "import:1: running; ends of 1 member found\n")
    client.command("ZADD", keys.flow_names(client.namespace), 1, "import:gone")
    assert cli("flow", "check", "--json").records[0]["flow"] in ("import:1", "import:gone")


def test_check_says_gone_only_of_what_is_on_the_list(cli, client):
    begun(client, "import:2026")
    index = keys.flow_names(client.namespace)
    for asked in ("import:2025", "import"):
        found = cli("flow", "check", asked)
        assert (found.code, found.out) == (2, "")
        assert "did you mean 'import:2026'?" in found.err
    client.command("ZADD", index, 1, "import:2025")
    found = cli("flow", "check", "import:2025")
    assert (found.code, found.out) == (0, "import:2025: deleted; removed from the list\n")
    assert client.command("ZRANGE", index, 0, -1) == [b"import:2026"]


def test_check_takes_names_off_the_list_that_are_no_text(cli, client):
    index = keys.flow_names(client.namespace)
    client.command("ZADD", index, 1, b"\xff\xfe:1", 1, b"no flow", 1, "\\xff\\xfe:1")
    found = cli("flow", "check")
    assert (found.code, found.out.count("deleted; removed from the list")) == (0, 3)
    assert client.command("ZCARD", index) == 0


def test_step_whose_queue_no_worker_serves_is_named_by_show_why_and_doctor(cli, client):
    register_queues(client, ["low", "pdf"])
    presence.put_worker(
        client,
        "web-1",
        {"queues": ["low"], "lease_ms": 15_000, "seen_at": client.clock_ms()},
    )
    store = FlowStore(client, "import:1")
    steps = (
        StoredStep("rows", "step", "low", call=CALL),
        StoredStep("stats", "step", "pdf", (Edge("rows"),), call=CALL),
    )
    store.create(StoredFlow(steps, "hash", "low", 60_000))
    low = Queue("low", client)
    low.announce("begin", "import:1")
    cli("flow", "check")
    [message] = low.dequeue(1).messages
    low.finish([Ending(mid=message.mid, token=message.token)])
    cli("flow", "check")
    assert "no worker serves queue 'pdf'" in cli("flow", "show", "import:1").out
    why = cli("why", "~import:1.r1.stats.0").out
    assert "waiting: no worker serves queue pdf" in why
    assert "it is member 0 of step stats of flow import:1; the flow waits for this message" in why
    assert "queue pdf: 1 ready, and no worker serves it" in cli("check", "doctor").out
