"""The commands of `jobq dead`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobq.queue.queue import Queue


def test_list_shows_the_first_line_of_the_reason_and_no_content(
    cli: Any, queue: Queue, kill_message: Callable[..., str]
) -> None:
    dead_id = kill_message(queue, "m")
    shown = cli("dead", "list").out
    assert "broken" in shown and "Traceback" not in shown and "secret" not in shown
    [record] = cli("dead", "list", "--json").records
    assert (record["dead_id"], record["mid"], record["job"]) == (dead_id, "m", "a.b")
    assert record["reason"] == "broken\n\nTraceback" and "content" not in record


def test_show_takes_a_mid_or_a_dead_id(cli: Any, queue: Queue, kill_message: Any) -> None:
    first = kill_message(queue, "m", "first")
    second = kill_message(queue, "m", "second")
    assert first != second
    for given, reason in (("m", "second"), (second, "second"), (first, "first")):
        [record] = cli("dead", "show", given, "--json").records
        assert record["reason"] == reason and "secret" in record["content"]
    assert "reason: second" in cli("dead", "show", "m").out
    assert cli("dead", "show", "none").code == 1


def test_show_keeps_the_lines_of_a_traceback_but_no_escape(
    cli: Any, queue: Queue, kill_message: Any
) -> None:
    kill_message(queue, "m", "broken\x1b[2J\n\nTraceback:\n  File x")
    shown = cli("dead", "show", "m").out
    assert "\x1b" not in shown
    assert "reason: broken\\x1b[2J\n    \n    Traceback:\n      File x\n" in shown


def test_revive_puts_one_back(cli: Any, queue: Queue, kill_message: Any) -> None:
    dead_id = kill_message(queue, "m")
    ended = cli("dead", "revive", "m", "--json")
    assert (ended.code, ended.records) == (
        0,
        [{"dead_id": dead_id, "queue": "low", "action": "revived"}],
    )
    assert queue.status("m").word == "queued"
    again = cli("dead", "revive", "m")
    assert (again.code, again.out) == (1, "m: not a dead message\n")


def test_revive_and_purge_all_of_one_queue(cli: Any, queue: Queue, kill_message: Any) -> None:
    for n in range(7):
        kill_message(queue, f"m{n}")
    assert cli("dead", "revive", "--all", "--queues", "low").out == "low: 7 revived\n"
    assert (queue.admin.counts().ready, queue.admin.counts().dead) == (7, 0)
    queue.admin.clear()
    for n in range(3):
        kill_message(queue, f"m{n}")
    kept = cli("dead", "purge", "--all", "--queues", "low", "--older-than", "1h", "--yes", "--json")
    assert (kept.code, kept.records) == (0, [{"queue": "low"}])
    gone = cli("dead", "purge", "--all", "--queues", "low", "--yes", "--json")
    assert gone.records == [{"queue": "low", "purged": 3}]
    assert queue.admin.counts().dead == 0


def test_purge_asks_and_does_nothing_without_a_yes(
    cli: Any, queue: Queue, kill_message: Any
) -> None:
    kill_message(queue, "m")
    refused = cli("dead", "purge", "m", given="n\n")
    assert refused.code == 1 and "Delete m?" in refused.err
    assert queue.admin.counts().dead == 1
    assert cli("dead", "purge", "m", given="y\n").code == 0
    assert queue.admin.counts().dead == 0


def test_all_needs_a_queue_and_excludes_ids(cli: Any) -> None:
    assert cli("dead", "purge", "--all", "--yes").code == 2
    assert cli("dead", "revive", "m", "--all", "--queues", "low").code == 2
    assert cli("dead", "revive").code == 2
    assert cli("dead", "revive", "--all", "--queues", "low,high").code == 2


def test_id_dead_in_two_queues_needs_a_queue(cli: Any, client: Any, kill_message: Any) -> None:
    for name in ("low", "high"):
        kill_message(Queue(name, client), "m")
    assert cli("dead", "purge", "m", "--yes").code == 2
    assert cli("dead", "purge", "m", "--yes", "--queues", "high").code == 0


@pytest.fixture
def after_a_deploy(client: Any, kill_message: Callable[..., str]) -> dict[str, Queue]:
    """Two queues with dead messages of an old worker, and others between them."""
    queues = {name: Queue(name, client) for name in ("low", "high")}
    for name, queue in queues.items():
        kill_message(queue, f"{name}-1", "no job 'a.b' here; is its module in --import?\n\nmore")
        kill_message(
            queue, f"{name}-2", "ValueError: no job 'a.b' here; is its module in --import?"
        )
        kill_message(queue, f"{name}-3", "no job 'a.b' here; is its module in --import?")
    return queues


def test_revive_where_brings_the_dead_of_one_reason_back_together(
    cli: Any, after_a_deploy: dict[str, Queue]
) -> None:
    condition = "reason=no job *"
    listed = cli("dead", "list", "--where", condition, "--json").records
    assert {record["mid"] for record in listed} == {"low-1", "low-3", "high-1", "high-3"}
    ended = cli("dead", "revive", "--where", condition)

    assert (ended.code, ended.out) == (0, "high: 2 revived\nlow: 2 revived\n")
    for name, queue in after_a_deploy.items():
        assert [dead.mid for dead in queue.admin.dead()] == [f"{name}-2"]
    again = cli("dead", "revive", "--where", condition)
    assert (again.code, again.out) == (0, "high: none dead\nlow: none dead\n")


def test_where_takes_those_that_match_every_condition(
    cli: Any, after_a_deploy: dict[str, Queue]
) -> None:
    def mids(*conditions: str) -> set[str]:
        words = [word for one in conditions for word in ("--where", one)]
        return {record["mid"] for record in cli("dead", "list", "--json", *words).records}

    assert mids("mid=low-*") == {"low-1", "low-2", "low-3"}
    assert mids("mid=low-*", "reason=*Error:*") == {"low-2"}
    assert mids("job=a.b", "mid=*1") == {"low-1", "high-1"}
    assert mids("job=a?b") == mids("job=") == mids("mid=low") == mids("reason=[n]o *") == set()
    assert mids("reason=*more*") == set()  # below its first line
    assert len(mids("reason=*")) == 6
    variable = {"JOBQ_DEAD_LIST_WHERE": "reason=no job *\nmid=low-*"}
    assert len(cli("dead", "list", "--json", env=variable).records) == 2


def test_where_keeps_to_the_queues_named_and_to_the_age(
    cli: Any, after_a_deploy: dict[str, Queue]
) -> None:
    condition = ("--where", "reason=no job *")
    young = cli("dead", "revive", *condition, "--older-than", "1h")
    assert (young.code, young.out) == (0, "high: none dead\nlow: none dead\n")
    cli("dead", "revive", *condition, "--queues", "low")
    assert (
        after_a_deploy["low"].admin.counts().ready,
        after_a_deploy["high"].admin.counts().ready,
    ) == (2, 0)
    gone = cli("dead", "purge", *condition, "--all", "--queues", "high", "--yes", "--json")
    assert gone.records == [{"queue": "high", "purged": 2}]
    refused = cli("dead", "purge", *condition, given="n\n")
    assert (
        refused.code == 1
        and "Delete all dead messages of all queues where reason=no job *?" in refused.err
    )


@pytest.mark.parametrize("condition", ["reason", "content=x", "=x", "", "REASON=x"])
def test_where_that_names_no_field_is_refused(cli: Any, queue: Queue, condition: str) -> None:
    for verb in ("list", "revive", "purge"):
        ended = cli("dead", verb, "--where", condition)
        assert ended.code == 2 and "reason=PATTERN or job=PATTERN or mid=PATTERN" in ended.err


def test_where_excludes_ids(cli: Any) -> None:
    assert cli("dead", "revive", "m", "--where", "mid=m").code == 2


def test_list_says_how_many_it_left_out(cli: Any, queue: Queue, kill_message: Any) -> None:
    for number in range(5):
        kill_message(queue, f"m{number}")
    ended = cli("dead", "list", "--limit", "2", "--offset", "1")
    assert ended.err == "low: 2 more not shown; add --all, --limit or --offset\n"
    ended = cli("dead", "list", "--limit", "2", "--where", "mid=m*")
    assert ended.err == "low: more not shown; add --all, --limit or --offset\n"
    assert cli("dead", "list").err == ""
    assert cli("dead", "list", "--limit", "5").err == ""
    assert len(cli("dead", "list", "--limit", "2", "--json").records) == 2


def test_limits_of_the_dead_are_shown_and_set(cli: Any, queue: Queue) -> None:
    queue.register()
    assert (
        cli("dead", "retention").out
        == "low: 10,000 dead messages, for 180 days; 0 deleted so far\n"
    )
    assert cli("dead", "retention", "--max", "7", "--for", "1h", "low", "--json").records == [
        {"queue": "low", "most": 7, "age_s": 3600.0, "evicted": 0}
    ]
    assert cli("dead", "retention").out == "low: 7 dead messages, for 3600 s; 0 deleted so far\n"
    assert cli("dead", "retention", "--max", "0").code == 2


def test_list_counts_the_errors_first(
    cli: Any, queue: Queue, client: Any, kill_message: Any
) -> None:
    for number in range(3):
        kill_message(queue, f"t{number}", f"Timeout: {number} s")
    kill_message(queue, "k", "KeyError: 1")
    kill_message(Queue("mails", client), "o", "Timeout: other queue")
    groups, rows = cli("dead", "list").out.split("\n\n")
    counts = [line.split()[:4] for line in groups.splitlines()[1:]]
    assert counts[0] == ["3", "low", "a.b", "Timeout"]
    assert sorted(counts[1:]) == [["1", "low", "a.b", "KeyError"], ["1", "mails", "a.b", "Timeout"]]
    assert len(rows.splitlines()) == 6
    only = cli("dead", "list", "low", "--where", "reason=Timeout*").out.split("\n\n")[0]
    assert [line.split()[0] for line in only.splitlines()[1:]] == ["3"]
    assert all("dead_id" in record for record in cli("dead", "list", "--json").records)


def test_list_has_no_groups_when_each_message_died_of_another_error(
    cli: Any, queue: Queue, kill_message: Any
) -> None:
    kill_message(queue, "k", "KeyError: 1")
    kill_message(queue, "t", "Timeout: 1")
    assert "\n\n" not in cli("dead", "list").out


@pytest.mark.parametrize("mid", ["m", "T2ckPu_MQP2RcD", "resize:" + "a" * 100])
def test_list_never_cuts_ids_on_a_terminal_of_eighty_columns(
    cli: Any, client: Any, kill_message: Any, monkeypatch: Any, mid: str
) -> None:
    monkeypatch.setattr("jobq.cli.output.terminal_width", lambda: 80)
    dead_id = kill_message(Queue("a-queue-with-a-long-name", client), mid, "Timeout: " + "x" * 200)
    [row] = cli("dead", "list").out.splitlines()[1:]
    assert dead_id in row
    # Only an id that is itself too long makes a line longer than the terminal.
    assert len(row) <= 80 or len(dead_id) > 40
    cli("dead", "show", row.split()[1])


def test_show_takes_several_ids(cli: Any, queue: Queue, kill_message: Any) -> None:
    first, second = kill_message(queue, "a", "one"), kill_message(queue, "b", "two")
    shown = cli("dead", "show", first, "b", "--json")
    assert [record["reason"] for record in shown.records] == ["one", "two"] and shown.code == 0
    part = cli("dead", "show", "none", second, "--json")
    assert part.code == 1 and part.records[1]["reason"] == "two"


def test_command_says_how_to_confirm_when_nobody_answers(
    cli: Any, queue: Queue, kill_message: Any
) -> None:
    kill_message(queue, "m")
    refused = cli("dead", "purge", "--all", "--queues", "low")
    assert refused.code == 1 and "without a terminal, add --yes" in refused.err
    assert queue.admin.counts().dead == 1
    assert cli("dead", "purge", "--all", "--queues", "low", given="y\n").code == 0
