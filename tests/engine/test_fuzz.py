"""Whatever arguments and keys a script is given: an error changed nothing, and the queue still works.

Programs in any language call the scripts, so each checks its arguments itself. The server has no way back from
a script's first write; therefore whatever a script can't use must be found before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from redis import exceptions as refused

from jobq.engine.functions import scripts
from jobq.engine.message import Ending, Hold
from jobq.engine.queue import Queue
from jobq.engine.script import Script

ENGINE = {script.name: script for script in scripts() if script.area == "engine"}
NOW = 1_700_000_000_000
CALLER = "fuzzfuzzfuzzfuzz"
#: What no number, word or mid may be.
HOSTILE: tuple[Any, ...] = (
    "", " ", "-1", "-0", "0", "1.5", "1500.5", "1e3", "1e300", "inf", "-inf", "nan", "0x10", "１", "bogus", "9" * 16,
    "9" * 400, b"\xff", b"\xff\xfe", "a\x00b", "a\nb", "\x1f\x1e\x1d", "x" * 70_000, str(2**63), str(-(2**63)),
)  # fmt: skip


class Call(NamedTuple):
    """A call that the script takes, on the queue as `alive` leaves it."""

    args: tuple[Any, ...]
    extra_keys: tuple[str, ...] = ()


def _numbered(*rest: Any) -> tuple[Any, ...]:
    return (CALLER, 7, NOW + 5_000, *rest)


def calls(queue: Queue, held: Hold, dead_id: str) -> dict[str, Call]:
    """One good call of each script."""
    ending = ("held", held.token, "done", "", 0, "job\x1f1")
    return {
        "cancel": Call(_numbered("held", "ready1", "due1", "none")),
        "clear": Call(_numbered()),
        "close": Call((CALLER,)),
        "collect": Call((NOW + 10**7, 3, 100)),
        "content": Call(("ready", 0, 10, NOW)),
        "counts": Call(()),
        "dead": Call(("", 0, 10)),
        "dequeue": Call(_numbered(1_000, 3, 5)),
        "enqueue": Call(_numbered(5, "", 1, 1, 50, 60, "new", "content", "held", "newer", "due1", "x")),
        "extend": Call((NOW + 5_000, 1_000, "held", held.token)),
        "finish": Call(
            _numbered(1_000, 3, 2, 1, *ending, 1, 60_000, "result"), (queue.result_key("held"),)
        ),
        "fsck": Call(("ready", 0, 10)),
        "level": Call(("all", 1_000)),
        "pause": Call(()),
        "progress": Call(("held", held.token, "half")),
        "purge": Call((dead_id,)),
        "release": Call(_numbered("held", held.token)),
        "repair": Call((NOW, "ready1", "held", "none")),
        "resume": Call(()),
        "revive": Call(_numbered(dead_id)),
        "status": Call(("held", NOW)),
    }  # fmt: skip


@pytest.fixture
def alive(queue: Queue, at: Callable[[int], int], end: Any) -> tuple[Hold, str]:
    """A queue with something in every place: the message that is held, and a dead one's id."""
    queue.events_level("all")
    queue.enqueue_many(
        [(name, b"v") for name in ("dead1", "crashed", "again", "over", "held")], now=at(0)
    )
    [dead, crashed, again, over, held] = queue.dequeue(5, lease_ms=60_000, now=at(0)).messages
    end(queue, dead, "dead", reason="why", now=at(1))
    end(queue, crashed, "crashed", reason="why", now=at(1))
    end(queue, again, "unknown", backoff_ms=500, now=at(1))
    end(queue, over, "done", backoff_ms=10_000, now=at(1))
    queue.progress("held", held.token, "a little")
    queue.enqueue(b"newer", mid="held", can_requeue=True, lock_ms=70_000, now=at(2))
    queue.enqueue_many([(f"due{i}", b"v") for i in range(3)], delay=3_600, dedupe=1, now=at(3))
    queue.enqueue_many([(f"ready{i}", b"v") for i in range(4)], now=at(3))
    queue.cancel("ready0", now=at(4))
    queue.enqueue(b"w", mid="ready3", can_update=True, delay=60, now=at(4))
    return Hold("held", held.token), queue.dead()[0].dead_id


class Raw:
    """Calls scripts as another program would, without any of the client's checks."""

    def __init__(self, redis: Any, queue: Queue) -> None:
        self._redis, self._queue = redis, queue
        self._known: set[str] = set()

    def keys(self, script: Script) -> list[str]:
        names = self._queue._bind(script.name)[1]
        return [
            *names,
            *([f"{self._queue.prefix}call:{CALLER}"] if "last_call" in script.keys else []),
        ]

    def __call__(self, script: Script, keys: list[str], args: tuple[Any, ...]) -> bool:
        """Whether the script took it."""
        try:
            self._redis.evalsha(self._loaded(script), len(keys), *keys, *args)
        except (refused.ResponseError, refused.OutOfMemoryError):
            return False
        return True

    def state(self) -> dict[bytes, Any]:
        """Every key, and whether it expires."""
        names = self._redis.keys("*{*")
        pipe = self._redis.pipeline(transaction=False)
        for name in names:
            pipe.dump(name).pttl(name)
        replies = pipe.execute()
        return {
            name: (value, ttl >= 0)
            for name, value, ttl in zip(names, replies[::2], replies[1::2], strict=True)
        }

    def _loaded(self, script: Script) -> str:
        if script.sha not in self._known:
            self._known.add(script.sha)
            self._redis.script_load(script.source)
        return script.sha


@pytest.fixture
def raw(redis: Any, queue: Queue) -> Raw:
    return Raw(redis, queue)


def _still_works(queue: Queue) -> None:
    queue.resume()
    [taken] = [queue.enqueue(b"after all", mid="sane", can_update=True)]
    assert taken.action in ("added", "updated")
    for _ in range(20):
        messages = queue.dequeue(100).messages
        if any(message.mid == "sane" for message in messages):
            return
        queue.finish([Ending(mid=m.mid, token=m.token) for m in messages])
    raise AssertionError("a sane message is never handed out")


def test_every_script_of_the_engine_has_a_good_call(queue: Queue, alive: Any, raw: Raw):
    good = calls(queue, *alive)
    assert set(good) == set(ENGINE)
    for name in sorted(set(good) - {"clear"}):
        script, call = ENGINE[name], good[name]
        assert raw(script, [*raw.keys(script), *call.extra_keys], call.args), name


@pytest.mark.parametrize("name", sorted(ENGINE))
def test_script_changes_nothing_when_it_refuses_an_argument(
    queue: Queue, alive: Any, raw: Raw, name: str
):
    script, call = ENGINE[name], calls(queue, *alive)[name]
    keys = [*raw.keys(script), *call.extra_keys]
    for args in _spoilt(call.args):
        before = raw.state()
        if not raw(script, keys, args):
            assert raw.state() == before, f"{name}{args!r:.300} was refused and changed something"
    _still_works(queue)


def _spoilt(args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for place in range(len(args)):
        for value in HOSTILE:
            yield (*args[:place], value, *args[place + 1 :])
        yield (*args[:place], *args[place + 1 :])
    yield ()
    yield (*args, "more")
    yield (*args, *args)


@pytest.mark.parametrize("name", sorted(ENGINE))
def test_script_changes_nothing_when_a_key_is_missing_or_one_too_many(
    queue: Queue, alive: Any, raw: Raw, name: str
):
    script, call = ENGINE[name], calls(queue, *alive)[name]
    keys = [*raw.keys(script), *call.extra_keys]
    for some in ([], keys[1:], keys[:-1], [*keys, f"{queue.prefix}more"]):
        before = raw.state()
        if not raw(script, some, call.args):
            assert raw.state() == before


def _of_another_type(redis: Any, key: str) -> Iterator[None]:
    """Every other type in turn, under the same name."""
    kind, saved = redis.type(key), redis.dump(key)
    for other, make in {
        b"string": lambda: redis.set(key, "7"),
        b"hash": lambda: redis.hset(key, "held", "7"),
        b"list": lambda: redis.rpush(key, "held"),
        b"set": lambda: redis.sadd(key, "held"),
        b"zset": lambda: redis.zadd(key, {"held": 7}),
        b"stream": lambda: redis.xadd(key, {"a": "b"}),
    }.items():
        if other != kind:
            redis.delete(key)
            make()
            yield
    redis.delete(key)
    if saved:
        redis.restore(key, 0, saved)


@pytest.mark.parametrize("name", sorted(ENGINE))
def test_script_changes_nothing_when_it_refuses_a_key_of_another_type(
    queue: Queue, alive: Any, raw: Raw, redis: Any, name: str
):
    script, call = ENGINE[name], calls(queue, *alive)[name]
    keys = [*raw.keys(script), *call.extra_keys]
    whole = {key: redis.dump(key) for key in redis.keys("*{*")}
    for key in keys:
        for _ in _of_another_type(redis, key):
            before = raw.state()
            if raw(script, keys, call.args):
                _put_back(redis, whole)
            else:
                assert raw.state() == before, (
                    f"{name} changed something where {key} is of another type"
                )
    _put_back(redis, whole)
    _still_works(queue)


def _put_back(redis: Any, whole: dict[bytes, bytes]) -> None:
    pipe = redis.pipeline(transaction=False)
    pipe.delete(*redis.keys("*{*"))
    for key, value in whole.items():
        pipe.restore(key, 0, value)
    pipe.execute()


#: Bytes where a script expects a number, a time, options or a record.
CORRUPT = (b"bogus", b"", b"-5", b"1e400", b"nan", b"\xff\xfe")
FIELDS = (
    "locks", "tokens", "backoffs", "nattempts", "ncrashes", "nunknowns", "generations", "requeue", "options",
    "progress", "dead-messages", "last-dead",
)  # fmt: skip
SETTINGS = (
    "floor",
    "max_lease",
    "max_content",
    "maxlen",
    "fence",
    "deduped",
    "paused",
    "events",
    "all_since",
)


def _corruptions(queue: Queue, redis: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    for name in FIELDS:
        key = f"{queue.prefix}{name}"
        for value in CORRUPT:
            yield (
                f"{name}={value!r:.20}",
                lambda key=key, value=value: [
                    redis.hset(key, field, value) for field in redis.hkeys(key)
                ],
            )
    for name in SETTINGS:
        for value in CORRUPT:
            yield (
                f"meta {name}={value!r:.20}",
                lambda name=name, value=value: redis.hset(f"{queue.prefix}meta", name, value),
            )
    for name in ("eoq-backoff?", "ndry-runs", f"call:{CALLER}"):
        for value in CORRUPT:
            yield (
                f"{name}={value!r:.20}",
                lambda name=name, value=value: redis.set(f"{queue.prefix}{name}", value),
            )
    full = "18446744073709551615-18446744073709551615"
    yield "events, ids used up", lambda: redis.xadd(f"{queue.prefix}events", {"1": "x"}, id=full)
    yield "events, foreign", lambda: redis.xadd(f"{queue.prefix}events", {"\xff": "\xff"})
    for name in ("ready", "mid-circle"):
        for mid in (b"\xff", b"a\nb", b"x" * 70_000, b""):
            yield (
                f"{name} {mid!r:.20}",
                lambda name=name, mid=mid: redis.lpush(f"{queue.prefix}{name}", mid),
            )
    for score in ("-inf", "inf", "0", "1.5"):
        yield (
            f"due at {score}",
            lambda score=score: redis.zadd(f"{queue.prefix}due", {b"\xff": score, "held": score}),
        )
    for name in ("left-ready", "left-circle", "done"):
        yield (
            name,
            lambda name=name: redis.sadd(
                f"{queue.prefix}{name}", b"\xff", "nowhere", "ready1", "held"
            ),
        )
    yield "dead", lambda: redis.zadd(f"{queue.prefix}dead", {b"\xff": "-inf", "no hash": 5, "#": 6})


def test_no_script_raises_after_a_write_when_stored_values_are_corrupt(
    queue: Queue, alive: Any, raw: Raw, redis: Any
):
    good = calls(queue, *alive)
    whole = {key: redis.dump(key) for key in redis.keys("*{*")}
    for what, corrupt in _corruptions(queue, redis):
        for name, call in good.items():
            script = ENGINE[name]
            keys = [*raw.keys(script), *call.extra_keys]
            corrupt()
            refused_it = not raw(script, keys, call.args)
            _put_back(redis, whole)
            if refused_it:
                corrupt()
                before = raw.state()
                assert not raw(script, keys, call.args)
                assert raw.state() == before, f"{what}: {name} raised and changed something"
                _put_back(redis, whole)


def test_messages_are_handed_out_whatever_stands_beside_them(queue: Queue, alive: Any, redis: Any):
    whole = {key: redis.dump(key) for key in redis.keys("*{*")}
    for what, corrupt in _corruptions(queue, redis):
        corrupt()
        try:
            _still_works(queue)
        except AssertionError:
            pytest.fail(what)
        _put_back(redis, whole)


def test_limits_are_kept_by_the_scripts_themselves(queue: Queue, alive: Any, raw: Raw):
    good = calls(queue, *alive)
    for name, place in {
        "content": 2,
        "dead": 2,
        "fsck": 2,
        "collect": 2,
        "dequeue": 5,
        "finish": 5,
    }.items():
        script, args = ENGINE[name], list(good[name].args)
        for limit in (1_001, 10**9, -1):
            args[place] = limit
            assert not raw(script, [*raw.keys(script), *good[name].extra_keys], tuple(args)), (
                name,
                limit,
            )
