"""Compare layouts for a topic's messages: the reason for choosing a stream."""

from __future__ import annotations

from collections.abc import Iterator

import jobq
from bench.server import info, private_server, server_s
from bench.stage import Row

MESSAGES = 100_000
PER_CALL = 500
#: KEYS a, b, c and meta; ARGV the messages.
LAYOUTS = {
    "a stream entry each": """
        local last = tonumber(redis.call('HGET', KEYS[4], 'last') or '0')
        for _, message in ipairs(ARGV) do
          last = last + 1
          redis.call('XADD', KEYS[1], string.format('%.0f', last) .. '-1700000000123', 'm', message)
        end
        redis.call('HSET', KEYS[4], 'last', last)""",
    "packed blocks in a hash": """
        local last = tonumber(redis.call('HGET', KEYS[4], 'last') or '0')
        local packed = {}
        for i, message in ipairs(ARGV) do packed[i] = struct.pack('>I6I3', 1700000000123, #message) .. message end
        last = last + #ARGV
        if redis.call('APPEND', KEYS[1], table.concat(packed)) > 4096 then
          redis.call('HSET', KEYS[2], string.format('%.0f', last), redis.call('GET', KEYS[1]))
          redis.call('DEL', KEYS[1])
        end
        redis.call('HSET', KEYS[4], 'last', last)""",
    "a list item each": """
        redis.call('RPUSH', KEYS[1], unpack(ARGV))
        redis.call('HINCRBY', KEYS[4], 'last', #ARGV)""",
}


def layouts(_: str) -> Iterator[Row]:
    """Yield server time and memory per 40-byte message, by layout, and the cost of reading it."""
    for name, script in LAYOUTS.items():
        with private_server() as client:
            memory, seconds = used(client)
            for first in range(0, MESSAGES, PER_CALL):
                some = [b"%040d" % number for number in range(first, first + PER_CALL)]
                client.command("EVAL", script, 4, *"abcd", *some, routed_by="a")
            now, spent = used(client)
            yield f"{name}: bytes per message", (now - memory) / MESSAGES, "B"
            yield f"{name}: server time per message", (spent - seconds) / MESSAGES * 1e6, "µs"
            if "stream" in name:
                yield from reading(client)


def reading(client: jobq.Client) -> Iterator[Row]:
    """A stream read as it is, and through a script."""
    through = "return redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])"
    for name, words in (
        ("XRANGE", ("XRANGE", "a")),
        ("XRANGE in a script", ("EVAL", through, 1, "a")),
    ):
        before = used(client)[1]
        for first in range(1, MESSAGES, PER_CALL):
            end = ("+", "COUNT", PER_CALL) if name == "XRANGE" else (PER_CALL,)
            client.command(*words, first, *end, routed_by="a")
        yield f"{name}: server time per message", (used(client)[1] - before) / MESSAGES * 1e6, "µs"


def used(client: jobq.Client) -> tuple[int, float]:
    """The server's memory, and the processor time it took so far."""
    return int(info(client, "memory")["used_memory"]), server_s(client)
