"""Mini-Redis answers as a real server does: the same random commands, reply by reply."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.model.machine import Machine

DESCRIBE = """
local function shown(byte) return '<' .. string.byte(byte) .. '>' end
local function described(reply)
  if type(reply) ~= 'table' then return type(reply) .. ' ' .. string.gsub(tostring(reply), '[^ -~]', shown) end
  if reply.ok then return 'status ' .. reply.ok end
  local items = {}
  for i, item in ipairs(reply) do items[i] = described(item) end
  return '{' .. table.concat(items, ', ') .. '}'
end
local function sorted_scan(reply, step)
  local rows = {}
  for i = 1, #reply[2], step do rows[#rows + 1] = table.concat(reply[2], '=', i, i + step - 1) end
  table.sort(rows)
  return {reply[1], rows}
end
local out = {}
for i, line in ipairs(ARGV) do
  local args = {}
  for item in string.gmatch(line .. '\\n', '([^\\n]*)\\n') do args[#args + 1] = item end
  local ok, reply = pcall(redis.call, unpack(args))
  if ok and args[1] == 'HSCAN' then reply = sorted_scan(reply, 2) end
  if ok and args[1] == 'HKEYS' then table.sort(reply) end
  if ok and args[1] == 'SSCAN' then reply = sorted_scan(reply, 1) end
  if ok and args[1] == 'PTTL' and reply > 0 then reply = 'some' end
  out[i] = ok and described(reply) or 'error'
  if not ok and string.find(tostring(reply), 'unknown command') then out[i] = 'unknown' end
end
return out
"""

# k a key of the right kind, f a field or member, v a value, i an index, n an integer, o and p the place of a bit,
# s a score, r the end of a range, t an id of a stream, b and e the ends of a range of these
TEMPLATES = """
string: GET k|STRLEN k|SET k v|SET k v PX 100000|INCR k|PTTL k
string: GETBIT k o|SETBIT k o 1|SETBIT k o 0|SETBIT k o n|GETRANGE k i i
string: BITFIELD k SET u3 p 5|BITFIELD k SET u1 p 1 SET u12 p 77
any: MGET k k|DEL k k|UNLINK k|TYPE k|EXISTS k k|PEXPIRE k 100000|PERSIST k
stream: XADD k t f v|XADD k t f v f v|XLEN k|XRANGE k b e|XRANGE k b e COUNT 2|XREVRANGE k e b COUNT 1
stream: XTRIM k MINID t|RENAME k k
hash: HGET k f|HMGET k f f|HEXISTS k f|HLEN k|HSTRLEN k f|HSET k f v f v|HSET k f n
hash: HSETNX k f v|HDEL k f f|HINCRBY k f n|HKEYS k|HSCAN k 0|HSCAN k 0 COUNT 100
set: SADD k f f|SREM k f f|SCARD k|SISMEMBER k f|SMISMEMBER k f f|SSCAN k 0
list: LPUSH k f f|RPUSH k f f|LPOP k|LPOP k 2|RPOP k|RPOP k 2|LLEN k|LINDEX k i
list: LRANGE k i i|LTRIM k i i|LREM k 0 f|LREM k 1 f|LPOS k f|RPUSH k f|RPUSH k f f
list: LMOVE k k LEFT RIGHT|LMOVE k k RIGHT LEFT|LMOVE k k LEFT LEFT
zset: ZADD k s f|ZADD k s f s f|ZADD k GT s f|ZREM k f f|ZCARD k|ZSCORE k f|ZRANK k f|ZCOUNT k r r
zset: ZRANGESTORE k k i i|ZRANGESTORE k k 0 -1|ZREMRANGEBYRANK k i i
zset: ZRANGEBYSCORE k r r|ZRANGEBYSCORE k r r LIMIT 1 2
zset: ZRANGE k i i|ZRANGE k i i WITHSCORES|ZRANGE k i i REV
zset: ZRANGE k r r BYSCORE|ZRANGE k r r BYSCORE LIMIT 0 2|ZRANGE k r r BYSCORE LIMIT 1 -1
"""
COMMANDS = [
    (kind, command)
    for line in TEMPLATES.strip().splitlines()
    for kind, commands in [line.split(": ")]
    for command in commands.split("|")
]
KINDS = ("string", "hash", "set", "list", "zset", "stream")


def filled(rng: random.Random, kind: str, template: str) -> str:
    """A template as one line, its blanks filled; now and then the key is of another kind."""
    choices = {
        "f": lambda: rng.choice("abc"),
        "v": lambda: rng.choice(["x", "", "7", "\x1f"]),
        "i": lambda: str(rng.randint(-4, 4)),
        "n": lambda: rng.choice(["1", "-3", "x"]),
        "p": lambda: rng.choice(["0", "3", "13"]),
        "o": lambda: rng.choice(["0", "1", "7", "8", "23", "-1", "x"]),
        "s": lambda: rng.choice(["0", "1", "-2", "1.5", "1e3", "x"]),
        "t": lambda: rng.choice(["1-1", "2-5", "3-1", "3-2", "7", "8-0", "9-4"]),
        "b": lambda: rng.choice(["-", "1", "2-6", "3-1", "8"]),
        "e": lambda: rng.choice(["+", "3", "3-1", "7", "9-4"]),
        "r": lambda: rng.choice(["-inf", "+inf", "0", "1", "(1", "1.5"]),
    }

    def blank(word: str) -> str:
        if word == "k":
            right = rng.random() < 0.95 and kind != "any"
            return f"{kind if right else rng.choice(KINDS)}{rng.randint(1, 2)}"
        return choices[word]() if word in choices else word

    return "\n".join(map(blank, template.split(" ")))


@pytest.mark.parametrize("seed", range(20))
def test_mini_redis_answers_as_the_server_does_when_commands_are_random(
    seed: int, redis: Any
) -> None:
    rng = random.Random(seed)
    lines = [filled(rng, *rng.choice(COMMANDS)) for _ in range(300)]
    redis.flushall()
    theirs = [reply.decode() for reply in redis.eval(DESCRIBE, 0, *lines)]
    ours = Machine().describe(DESCRIBE, lines)

    shown = [line.replace("\n", " ") for line in lines]
    assert list(zip(shown, ours, strict=True)) == list(zip(shown, theirs, strict=True))


def test_each_command_of_mini_redis_is_compared_but_for_the_clock() -> None:
    compared = {command.split(" ")[0] for _, command in COMMANDS}

    assert compared | {"TIME"} == set(Machine().store.commands)


def test_a_key_with_a_ttl_is_gone_when_its_time_has_come() -> None:
    machine = Machine()
    machine.command(1_000, "SET", "k", "v", "PX", "50")

    assert machine.command(1_049, "GET", "k") == "v"
    assert machine.command(1_050, "GET", "k") is False


def test_mini_redis_is_loud_when_a_command_is_unknown() -> None:
    with pytest.raises(Exception, match="unknown command OBJECT"):
        Machine().command(0, "OBJECT", "FREQ", "k")


def test_mini_redis_is_loud_when_a_key_is_not_declared() -> None:
    machine = Machine()
    machine.add_script("stray", "return {redis.call('GET', 'elsewhere')}", "here")

    with pytest.raises(Exception, match="undeclared key elsewhere"):
        machine.run("stray", "A", 0)
