"""Scripts called as no client of ours calls them, on data that none of ours writes: an error changed nothing.

Programs in any language call the scripts and write the keys. The server has no way back from a script's first write;
therefore whatever a script can't use must be found before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import pytest
from redis import exceptions as redis_errors

from jobq.client.functions import flags
from jobq.client.scripts import Script

#: What no number, word or id may be.
HOSTILE: tuple[Any, ...] = (
    "", " ", "-1", "-0", "0", "1.5", "1500.5", "1e3", "1e300", "inf", "-inf", "nan", "0x10", "１", "bogus", "9" * 16,
    "9" * 400, b"\xff", b"\xff\xfe", "a\x00b", "a\nb", "\x1f\x1e\x1d", "x" * 70_000, str(2**63), str(-(2**63)),
)  # fmt: skip
#: Those of them that no argument which is a number may be.
NO_NUMBERS = frozenset(HOSTILE) - {"", "-1", "-0", "0", "9" * 16, str(2**63), str(-(2**63))}
#: Bytes where a script expects a number, a time, options or a record.
CORRUPT = (b"bogus", b"", b"-5", b"1e400", b"nan", b"\xff\xfe")
SCORES = ("-inf", "inf", "-5", "1.5", "1e300")
#: Of corruptions: `make test` tries each fourth one, since all take 8 s of CPU.
EVERY = pytest.mark.parametrize(
    "every", [4, pytest.param(1, marks=pytest.mark.long)], ids=["fourth", "one"]
)
LAST_ID = "18446744073709551615-18446744073709551615"
#: Of the database, but for how long keys still live.
_DIGEST = """
-- A copy of a set or hash may keep its members in another order.
local function text(name)
  local kind = redis.call('TYPE', name).ok
  local members = {}
  if kind == 'set' then
    members = redis.call('SMEMBERS', name)
  elseif kind == 'hash' then
    local pairs_of = redis.call('HGETALL', name)
    for i = 1, #pairs_of, 2 do members[#members + 1] = #pairs_of[i] .. ':' .. pairs_of[i] .. pairs_of[i + 1] end
  else
    return redis.call('DUMP', name)
  end
  table.sort(members)
  for i, member in ipairs(members) do members[i] = #member .. ':' .. member end
  return kind .. table.concat(members)
end

local function digest()
  local names, parts = redis.call('KEYS', '*'), {}
  table.sort(names)
  for i, name in ipairs(names) do
    parts[i] = name .. text(name) .. tostring(redis.call('PTTL', name) >= 0)
  end
  return redis.sha1hex(table.concat(parts))
end
"""
#: Copies every key to the other database ARGV[1], where they live for ever; how long they live here is noted there.
_KEEP = """
local kept, lives = ARGV[1], {}
local names = redis.call('KEYS', '*')
redis.call('SELECT', kept)
redis.call('FLUSHDB')
redis.call('SELECT', 0)
for _, name in ipairs(names) do
  lives[name] = redis.call('PTTL', name)
  redis.call('COPY', name, name, 'DB', kept)
end
redis.call('SELECT', kept)
for name, left_ms in pairs(lives) do
  if left_ms >= 0 then
    redis.call('PERSIST', name)
    redis.call('HSET', 'how long keys live', name, math.max(left_ms, 1))
  end
end
"""
#: Copies them back; where a digest is given, it answers the one of now, and does nothing if they are the same.
_PUT_BACK = """
local found
if ARGV[2] then
  found = digest()
  if found == ARGV[2] then return found end
end
redis.call('FLUSHDB')
redis.call('SELECT', ARGV[1])
local lives = redis.call('HGETALL', 'how long keys live')
for _, name in ipairs(redis.call('KEYS', '*')) do
  if name ~= 'how long keys live' then redis.call('COPY', name, name, 'DB', 0) end
end
redis.call('SELECT', 0)
for i = 1, #lives, 2 do redis.call('PEXPIRE', lives[i], lives[i + 1]) end
return found
"""


class Call(NamedTuple):
    """A call that a script takes. numbers: the places of the arguments that are numbers."""

    keys: tuple[str, ...]
    args: tuple[Any, ...] = ()
    numbers: tuple[int, ...] = ()


#: A script, its keys and its arguments.
ScriptCall = tuple[Script, tuple[str, ...], tuple[Any, ...]]


class Raw:
    """Calls scripts as another program would, without any of the client's checks."""

    def __init__(self, redis: Any) -> None:
        self.redis = redis
        self._known: set[str] = set()
        self._shas: dict[str, str] = {}

    def __call__(self, script: Script, keys: Iterable[str], args: Iterable[Any]) -> bool:
        """Whether the script took it."""
        keys = tuple(keys)
        try:
            self.redis.evalsha(self._loaded(script), len(keys), *keys, *args)
        except (redis_errors.ResponseError, redis_errors.OutOfMemoryError):
            return False
        return True

    def faulty(self, calls: Sequence[ScriptCall], kept: int) -> list[ScriptCall]:
        """Make each call on what is kept, in one round trip. Return those that changed something and may not.

        A call that was refused may change nothing, nor may one of a script that only reads.
        """
        before = self.digest()
        pipe = self.redis.pipeline(transaction=False)
        for script, keys, args in calls:
            pipe.evalsha(self._loaded(script), len(keys), *keys, *args)
            pipe.evalsha(self._sha(_DIGEST + _PUT_BACK), 0, kept, before)
        replies = pipe.execute(raise_on_error=False)
        found = []
        for call, reply, after in zip(calls, replies[::2], replies[1::2], strict=True):
            may_change = not isinstance(
                reply, redis_errors.RedisError
            ) and "no-writes" not in flags(call[0])
            if after != before and not may_change:
                found.append(call)
        return found

    def digest(self) -> bytes:
        """The same as long as nothing changes."""
        found: bytes = self._run(_DIGEST + "return digest()")
        return found

    def state(self, kept: int = 1) -> int:
        """Every key, and how long it lives, kept in another database of the server until it is emptied."""
        self._run(_KEEP, kept)
        return kept

    def put_back(self, kept: int) -> None:
        """Make it so again."""
        self._run(_PUT_BACK, kept)

    def _run(self, text: str, *args: Any) -> Any:
        return self.redis.evalsha(self._sha(text), 0, *args)

    def _sha(self, text: str) -> str:
        if text not in self._shas:
            self._shas[text] = self.redis.script_load(text)
        return self._shas[text]

    def _loaded(self, script: Script) -> str:
        if script.sha not in self._known:
            self._known.add(script.sha)
            self.redis.script_load(script.source)
        return script.sha


def takes(raw: Raw, script: Script, call: Call) -> bool:
    """Whether a script takes a call; all is as before then."""
    whole = raw.state()
    taken = raw(script, call.keys, call.args)
    raw.put_back(whole)
    return taken


def refuses_whole(raw: Raw, script: Script, call: Call, *, stays: bool = False) -> None:
    """Arguments that are none, and too few or too many of them or of the keys.

    stays: what the script takes after all stays, for a look at what that did.
    """
    spoilt_calls = [
        *((call.keys, args) for args in spoilt(call.args)),
        *((keys, call.args) for keys in ((), call.keys[1:], call.keys[:-1], (*call.keys, "more"))),
    ]
    if not stays:
        faulty = raw.faulty([(script, keys, args) for keys, args in spoilt_calls], raw.state())
        assert not faulty, changed(*faulty[0])
        return
    before = raw.digest()
    for keys, args in spoilt_calls:
        if not raw(script, keys, args):
            assert raw.digest() == before, changed(script, keys, args)
        elif "no-writes" not in flags(script):
            before = raw.digest()


def changed(script: Script, keys: tuple[str, ...], args: tuple[Any, ...]) -> str:
    """What is said of a call that changed something and may not."""
    return f"{script.name}{args!r:.300} with {len(keys)} keys changed something, though it was refused or only reads"


def refuses_what_is_no_number(raw: Raw, script: Script, call: Call) -> None:
    """In each place of a number."""
    for place in call.numbers:
        for value in NO_NUMBERS:
            args = (*call.args[:place], value, *call.args[place + 1 :])
            assert not raw(script, call.keys, args), (
                f"{script.name} took {value!r:.20} in place {place}"
            )


def spoilt(args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Good arguments with something wrong in each place, or in their number."""
    for place in range(len(args)):
        for value in HOSTILE:
            yield (*args[:place], value, *args[place + 1 :])
        yield (*args[:place], *args[place + 1 :])
    yield ()
    yield (*args, "more")
    yield (*args, *args)


def refuses_keys_of_another_type(raw: Raw, script: Script, call: Call) -> None:
    """Each key in turn, in each of the other types."""
    whole = raw.state()
    for key in dict.fromkeys(call.keys):
        for kind in of_another_type(raw.redis, key):
            before = raw.digest()
            if raw(script, call.keys, call.args):
                raw.put_back(whole)
            else:
                assert raw.digest() == before, (
                    f"{script.name} changed something though {key} is a {kind}"
                )
    raw.put_back(whole)


def of_another_type(redis: Any, key: str) -> Iterator[str]:
    """Every other type in turn, under the same name."""
    kind, saved = redis.type(key), redis.dump(key)
    for other, make in {
        "string": lambda: redis.set(key, "7"),
        "hash": lambda: redis.hset(key, "held", "7"),
        "list": lambda: redis.rpush(key, "held"),
        "set": lambda: redis.sadd(key, "held"),
        "zset": lambda: redis.zadd(key, {"held": 7}),
        "stream": lambda: redis.xadd(key, {"a": "b"}),
    }.items():
        if other.encode() != kind:
            redis.delete(key)
            make()
            yield other
    redis.delete(key)
    if saved:
        redis.restore(key, 0, saved)


class Corruption(NamedTuple):
    """Something that somebody else may write to a key, '' for any of those that scripts know."""

    what: str
    key: str
    make: Callable[[], Any]


def raises_before_it_writes(
    raw: Raw, calls: Mapping[Script, Call], corruptions: Iterable[Corruption], every: int = 1
) -> None:
    """Whatever stands in the keys: a script that raises changed nothing."""
    whole = raw.state()
    for one in islice(corruptions, 0, None, every):
        one.make()
        touched = [
            (script, call.keys, call.args)
            for script, call in calls.items()
            if not one.key or one.key in call.keys
        ]
        faulty = raw.faulty(touched, raw.state(2))
        assert not faulty, f"{one.what}: {changed(*faulty[0])}"
        raw.put_back(whole)


def corruptions_of(redis: Any) -> Iterator[Corruption]:
    """Of every key that there is, by its type. Each is made on what is there now."""
    by_type = {
        b"hash": _of_hash,
        b"list": _of_list,
        b"set": _of_set,
        b"zset": _of_zset,
        b"stream": _of_stream,
    }
    for name in sorted(redis.keys()):
        found = by_type.get(redis.type(name), _of_string)
        yield from found(redis, name.decode())


def _of_string(redis: Any, key: str) -> Iterator[Corruption]:
    for value in CORRUPT:
        yield Corruption(f"{key}={value!r}", key, lambda value=value: redis.set(key, value))


def _of_hash(redis: Any, key: str) -> Iterator[Corruption]:
    fields = redis.hkeys(key)
    for value in CORRUPT:
        yield Corruption(
            f"{key} all={value!r}",
            key,
            lambda value=value: redis.hset(key, mapping=dict.fromkeys(fields, value)),
        )
        for field in fields:
            yield Corruption(
                f"{key} {field!r}={value!r}",
                key,
                lambda field=field, value=value: redis.hset(key, field, value),
            )
    for field in fields:
        yield Corruption(
            f"{key} without {field!r}", key, lambda field=field: redis.hdel(key, field)
        )
    yield Corruption(f"{key} foreign", key, lambda: redis.hset(key, b"\xff", b"\xff"))


def _of_list(redis: Any, key: str) -> Iterator[Corruption]:
    for value in (*CORRUPT, b"a\nb", b"x" * 70_000):
        yield Corruption(
            f"{key} begins with {value!r:.20}", key, lambda value=value: redis.lpush(key, value)
        )
    yield Corruption(f"no {key}", key, lambda: redis.delete(key))


def _of_set(redis: Any, key: str) -> Iterator[Corruption]:
    yield Corruption(f"{key} foreign", key, lambda: redis.sadd(key, *CORRUPT))
    yield Corruption(f"no {key}", key, lambda: redis.delete(key))


def _of_zset(redis: Any, key: str) -> Iterator[Corruption]:
    members = redis.zrange(key, 0, -1)
    for score in SCORES:
        yield Corruption(
            f"{key} scores {score}",
            key,
            lambda score=score: redis.zadd(key, dict.fromkeys(members, score)),
        )
        yield Corruption(
            f"{key} foreign at {score}",
            key,
            lambda score=score: redis.zadd(key, dict.fromkeys(CORRUPT, score)),
        )
    yield Corruption(f"no {key}", key, lambda: redis.delete(key))


def _of_stream(redis: Any, key: str) -> Iterator[Corruption]:
    yield Corruption(f"{key} foreign", key, lambda: redis.xadd(key, {b"\xff": b"\xff"}))
    yield Corruption(f"{key}, ids used up", key, lambda: redis.xadd(key, {"m": "x"}, id=LAST_ID))
    yield Corruption(f"{key} emptied", key, lambda: redis.xtrim(key, maxlen=0, approximate=False))
    yield Corruption(f"no {key}", key, lambda: redis.delete(key))


def tests_of(scripts: Mapping[str, Script]) -> tuple[Callable[..., None], ...]:
    """What holds of every script of a protocol: three tests, for a module that has the fixtures `raw` and `good`.

    good: a call of each script that it takes, on data that is there.
    """

    def test_every_script_has_a_good_call(raw: Raw, good: Mapping[str, Call]) -> None:
        assert set(good) == set(scripts)
        for name, call in good.items():
            assert takes(raw, scripts[name], call), name

    @pytest.mark.parametrize("name", sorted(scripts))
    def test_script_changes_nothing_when_it_refuses_its_arguments_or_keys(
        raw: Raw, good: Mapping[str, Call], name: str
    ) -> None:
        refuses_whole(raw, scripts[name], good[name])
        refuses_what_is_no_number(raw, scripts[name], good[name])
        refuses_keys_of_another_type(raw, scripts[name], good[name])

    @EVERY
    def test_no_script_raises_after_a_write_when_stored_values_are_corrupt(
        raw: Raw, good: Mapping[str, Call], redis: Any, every: int
    ) -> None:
        calls = {scripts[name]: call for name, call in good.items()}
        raises_before_it_writes(raw, calls, corruptions_of(redis), every)

    return (
        test_every_script_has_a_good_call,
        test_script_changes_nothing_when_it_refuses_its_arguments_or_keys,
        test_no_script_raises_after_a_write_when_stored_values_are_corrupt,
    )
