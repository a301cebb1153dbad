"""`jobq check doctor` and `jobq check fsck` on real servers."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

import pytest

from jobq import ConcurrencyLimit, RateLimit
from jobq.cli import attention, check, held_back
from jobq.flows.listing import put_on_list
from jobq.flows.store import FlowStore
from jobq.flows.types import FlowChange, StoredFlow, StoredStep
from jobq.jobs.codec import encode
from jobq.queue.queue import Queue
from jobq.queue.server_load import LoadWatch


@pytest.fixture
def setting(redis: Any) -> Any:
    """setting(name, value): change the server for the length of the test."""
    before: dict[str, str] = {}

    def change(name: str, value: str) -> None:
        for key, found in redis.config_get(name).items():
            before.setdefault(_text(key), _text(found))
        redis.config_set(name, value)

    yield change
    for name, value in before.items():
        redis.config_set(name, value)


@pytest.fixture
def user(redis: Any) -> Any:
    """user(rights): the login of a user who may do no more."""

    def make(*rights: str) -> str:
        redis.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">x", *rights)
        return "poor:x@"

    yield make
    redis.execute_command("ACL", "DELUSER", "poor")


def levels(ended: Any) -> dict[str, str]:
    """Check -> level."""
    return {record["check"]: record["level"] for record in ended.records}


def test_doctor_finds_a_private_server_usable(cli: Any) -> None:
    ended = cli("check", "doctor", "--json")
    assert ended.code == 0
    found = levels(ended)
    assert {found[name] for name in ("server", "eviction", "rights", "exposure", "replicas")} == {
        "ok"
    }
    assert "user default may send" in cli("check", "doctor").out


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_doctor_refuses_eviction_that_loses_jobs(cli: Any, setting: Any, policy: str) -> None:
    setting("maxmemory-policy", policy)
    assert levels(cli("check", "doctor", "--json"))["eviction"] == "warn"
    setting("maxmemory", "200mb")
    ended = cli("check", "doctor", "--json")
    assert (ended.code, levels(ended)["eviction"]) == (1, "fail")
    assert "→ CONFIG SET maxmemory-policy noeviction" in cli("check", "doctor").out


def test_doctor_counts_warnings_when_strict(cli: Any, setting: Any) -> None:
    setting("maxmemory-policy", "allkeys-lru")
    assert cli("check", "doctor").code == 0
    assert cli("check", "doctor", "--strict").code == 1


def test_doctor_names_rights_that_lack(cli: Any, client: Any, user: Any) -> None:
    login = user("~jobq:*", "+@all", "-xadd", "-@blocking")
    ended = cli(
        "check", "doctor", "--json", "--url", client.url.replace("unix://", f"unix://{login}")
    )
    [rights] = [record for record in ended.records if record["check"] == "rights"]
    assert (ended.code, rights["level"]) == (1, "fail")
    assert (
        "XADD" in rights["value"] and "BLPOP" in rights["value"] and "HSET" not in rights["value"]
    )
    assert rights["remedy"] == "ACL SETUSER poor ~jobq:* +blmove +blpop +xadd"


def test_doctor_works_without_the_right_to_look(cli: Any, client: Any, user: Any) -> None:
    login = user("~jobq:*", "+@all", "-@dangerous", "-@admin", "-command")
    ended = cli(
        "check", "doctor", "--json", "--url", client.url.replace("unix://", f"unix://{login}")
    )
    found = levels(ended)
    assert (found["eviction"], found["persistence"], found["server"]) == ("warn", "warn", "warn")
    assert found["rights"] == "ok" and ended.code == 0


def test_doctor_never_shows_a_password(cli: Any, client: Any, user: Any) -> None:
    user("~jobq:*", "+ping")
    url = client.url.replace("unix://", "unix://poor:canary@")
    ended = cli("check", "doctor", "--url", url)
    assert "canary" not in ended.out + ended.err


def test_doctor_names_queues_that_refused_buffered_messages(cli: Any, client: Any) -> None:
    Queue("low", client).count_refused(2)
    Queue("low", client).count_refused(3)
    Queue("low", client).register()
    out = cli("check", "doctor").out
    assert "queue low: outage buffers lost 5 messages, the last" in out


def test_doctor_names_the_queue_that_takes_most_of_the_cpu(
    cli: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(_: float) -> None:
        queue.enqueue_many([b"x"] * 100)

    # A nearly constant clock makes any server busy.
    monkeypatch.setattr(
        check, "LoadWatch", partial(LoadWatch, wait=work, now=count(0, 1e-6).__next__)
    )
    queue.register()
    found = [
        record for record in cli("check", "doctor", "--json").records if record["check"] == "cpu"
    ]
    assert [record["level"] for record in found] == ["warn"]
    assert f"queue {queue.name} takes about" in found[0]["value"]


def test_doctor_leaves_nothing_behind(cli: Any, redis: Any) -> None:
    cli("check", "doctor")
    assert redis.keys("*") == []


def test_fsck_of_sound_queues_is_clean(cli: Any, queue: Queue) -> None:
    queue.enqueue_many([b"x"] * 1200)
    queue.dequeue(10)
    assert (cli("check", "fsck").code, cli("check", "fsck").out) == (0, "low: clean\n")


def test_fsck_names_what_does_not_hold(cli: Any, queue: Queue, redis: Any) -> None:
    queue.enqueue(b"x", mid="m")
    redis.rpush("jobq:{low}:ready", "m")
    ended = cli("check", "fsck", "--json")
    assert ended.code == 1
    assert {"queue": "low", "rule": "in more than one place", "mid": "m"} in ended.records


def test_fsck_finds_and_repairs_damaged_limits(cli: Any, client: Any, redis: Any) -> None:
    limit, slots = (
        RateLimit("stripe", "3/h", client=client),
        ConcurrencyLimit("erp", 2, client=client),
    )
    with slots.slot():
        assert [bool(limit.try_acquire()) for _ in range(4)] == [True, True, True, False]
        limit.hold("1h")
        assert cli("check", "fsck", "--json").records == []
    ring, state = "jobq:limit:{stripe}:ring", "jobq:limit:{stripe}:state"
    redis.lpush(ring, 5)
    redis.hset(state, "advice", "\x1b[2J")
    redis.set("jobq:limit:{erp}:settings", "x")
    redis.zadd("jobq:limit:{erp}:holders", {"t": 1e300})
    redis.hset("jobq:limits", b"\xff{}", "1/s 0")
    found = cli("check", "fsck")
    assert found.code == 1
    assert sorted(found.out.splitlines()) == [
        "limit \\xff{}: not a limit's name",
        "limit erp: a lease with an impossible end: holders",
        "limit erp: key of another type: string: settings",
        "limit stripe: advice is not a number: state",
        "limit stripe: starts out of order: ring",
    ]
    assert cli("check", "fsck", "--repair", "--yes").code == 0
    assert cli("check", "fsck").out == ""
    assert limit.try_acquire()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_doctor_repeats_nothing_on_an_empty_server(cli: Any) -> None:
    shown = cli("check", "doctor")
    lines = [*shown.out.splitlines(), *shown.err.splitlines()]
    assert len(lines) == len(set(lines)) and "no queues here yet" in shown.err


def test_doctor_names_what_is_full_now(cli: Any, client: Any, queue: Queue) -> None:
    queue.register()
    queue.rules(key_waiting=2, key_max=1)
    for key in ("a", "a", "b", "c"):
        queue.enqueue(b"{}", key=key)
    queue.dequeue(1)
    queue.enqueue(b"{}", key="a")
    erp = ConcurrencyLimit("erp", 1, client=client)
    assert RateLimit("stripe", "1/h", client=client).try_acquire()
    with erp.slot():
        found = {
            (one["check"], one["level"]): one["value"]
            for one in cli("check", "doctor", "--json").records
        }
    assert found["keys", "warn"].endswith("wait for room: a (2 of 2 wait)")
    assert "1 key reached the maximum of waiting messages" in found["keys", "warn"]
    assert found["keys", "ok"].endswith("with waiting messages: a (1 of 1 run, 2 wait)")
    assert "2 limits used up" in found["limits", "ok"] and "erp (1 of 1)" in found["limits", "ok"]


def test_doctor_names_a_bounded_number_of_full_lines_and_unserved_queues(
    cli: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        one = Queue(f"q{number}", client)
        one.register()
        one.rules(key_waiting=1)
        for key in range(8):
            one.enqueue(b"{}", key=f"k{key}")
    monkeypatch.setattr(held_back, "MAX_QUEUES", 2)
    monkeypatch.setattr(attention, "MAX_OF_KIND", 3)
    found = [one for one in cli("check", "doctor", "--json").records if one["level"] != "fail"]
    full = [one["value"] for one in found if one["check"] == "keys"]
    assert len(full) == 3 and full[2] == "2 more queues with keys were not checked"
    assert "8 keys reached the maximum of waiting messages" in full[0] and full[0].endswith(
        "and 3 more"
    )
    unserved = [one["value"] for one in found if one["check"] == "workers"]
    assert unserved[3:] == ["1 more findings of the kind no_worker"]


@pytest.mark.usefixtures("run_ids")
def test_doctor_says_that_there_are_more_limits_and_flows_than_it_looks_at(
    cli: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        assert cli("limit", "set", f"l{number}", "10/m").code == 0
        store = FlowStore(client, f"f:{number}")
        steps = (StoredStep("rows", "step", "low", call=encode("app.step", enqueued_at=1)),)
        assert store.create(StoredFlow(steps, "hash", "low", 60_000)) == "created"
        put_on_list(client, f"f:{number}")
        store.sent(store.apply("qlow", [FlowChange("begin")]).todo)
    monkeypatch.setattr(held_back, "MAX_LIMITS", 1)
    monkeypatch.setattr(held_back, "MAX_FLOWS", 1)
    found = [one["value"] for one in cli("check", "doctor", "--json").records]
    assert "2 more limits were not checked" in found
    assert "flows older than the latest 1 were not checked" in found


def test_doctor_says_which_keys_it_cannot_read(cli: Any, queue: Queue, redis: Any) -> None:
    queue.register()
    queue.enqueue(b"{}", key="a")
    redis.set("jobq:{low}:rules", "x")
    found = [one for one in cli("check", "doctor", "--json").records if one["check"] == "keys"]
    assert "queue low: its keys can't be read" in found[0]["value"]
