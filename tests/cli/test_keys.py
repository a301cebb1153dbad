"""`jobq key list | set | hold`, and `jobq enqueue --key`."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.queue.queue import Queue


def test_list_shows_the_fullest_keys_first(cli: Any, queue: Queue) -> None:
    queue.rule("bob", max=1)
    queue.enqueue_many(
        [(None, b"{}", "acme"), (None, b"{}", "acme"), (None, b"{}", "acme"), ("b", b"{}", "bob")]
    )
    queue.enqueue(b"{}")
    first, second = cli("key", "list", "low", "--json").records
    assert (first["queue"], first["key"], first["waiting"], first["running"]) == (
        "low",
        "acme",
        3,
        0,
    )
    assert (second["key"], second["waiting"], second["max"], second["oldest"]) == ("bob", 1, 1, "b")
    assert [one["key"] for one in cli("key", "list", "low", "--limit", "1", "--json").records] == [
        "acme"
    ]
    assert len(cli("key", "list", "low", "--all", "--json").records) == 2
    shown = cli("key", "list", "low").out.splitlines()
    assert shown[0].split()[:3] == ["key", "waiting", "running"] and len(shown) == 3
    refused = cli("key", "list", "lwo")
    assert refused.code == 1 and "did you mean low?" in refused.out


def test_set_changes_what_is_given_and_none_removes_it(cli: Any, queue: Queue) -> None:
    queue.enqueue(b"{}")
    [record] = cli("key", "set", "low", "--max", "200", "--key-rate", "100/m", "--json").records
    assert (record["max"], record["key_max"], record["key_rate"]) == (200, None, "100/m")
    assert (
        cli("key", "set", "low", "--key-max", "5").out
        == "low: max 200, key max 5, key rate 100/m\n"
    )
    assert cli("key", "set", "low", "--max", "none", "--key-rate", "none").out == "low: key max 5\n"
    [record] = cli("key", "set", "low", "acme", "--max", "20", "--weight", "3", "--json").records
    assert (record["key"], record["max"], record["weight"], record["rate"]) == ("acme", 20, 3, None)
    assert cli("key", "set", "low", "acme").out == "low acme: max 20, weight 3\n"
    assert queue.rules().key_max == 5


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("low", "--weight", "3"), "--weight is for one key; pass a KEY, or --key-weight"),
        (("low", "acme", "--key-max", "3"), "--key-max is for all keys; with KEY use --max"),
        (
            ("low", "--max", "many"),
            "--max 'many' is not a whole number; write a number, or none for no limit",
        ),
        (("low", "--max", "0"), "max=0 is invalid"),
        (("low", "--key-rate", "100"), "'100' is not a rate; write '100/m', '5/s' or '1000/h'"),
        (
            ("low", "acme", "--weight", "1001"),
            "weight=1001 is invalid; use a whole number from 1 to 1,000",
        ),
        (("low", "a" * 129, "--max", "1"), "can't be used; use 1-128 printable characters"),
    ],
)
def test_limit_that_makes_no_sense_is_refused(
    cli: Any, queue: Queue, words: tuple[str, ...], told: str
) -> None:
    ended = cli("key", "set", *words)
    assert ended.code == 2 and told in ended.err
    assert set(queue.rules()) == {None}


def test_hold_starts_nothing_of_a_key_until_it_ends(cli: Any, queue: Queue) -> None:
    queue.enqueue(b"{}", key="acme")
    assert cli("key", "hold", "low", "acme", "30s").out == "low acme: held for 30 s\n"
    assert queue.dequeue().messages == []
    assert cli("key", "hold", "low", "acme", "0", "--json").records == [
        {"queue": "low", "key": "acme", "held_until": 0}
    ]
    assert len(queue.dequeue().messages) == 1
    assert cli("key", "hold", "low", "acme", "soon").code == 2


def test_enqueue_gives_a_key(cli: Any, client: Any) -> None:
    assert cli("enqueue", "a.b", "--queue", "low", "--key", "acme", "--ordered").code == 0
    [row] = Queue("low", client).admin.iter_keys()
    assert (row.key, row.waiting) == ("acme", 1)
    assert (
        "applies only to messages with a key"
        in cli("enqueue", "a.b", "--queue", "low", "--ordered").err
    )
