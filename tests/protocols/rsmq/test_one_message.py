"""The short ways of send, receive and delete for one message do what the rest of each script does."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from redis.exceptions import ResponseError

from jobq.client.scripts import load

TIME_S, TIME_US = 1_763_312_345, 678_901
NOW_MS = TIME_S * 1000 + TIME_US // 1000
ID = "g1ls3zxv9x" + "a" * 22
RANDOM = "b" * 22
NUMBERS = [
    None,
    "0",
    "1",
    "7",
    "30",
    "007",
    "-3",
    "15.5",
    "30 s",
    "x",
    "",
    "9" * 16,
    "9" * 25,
    "inf",
]
USUAL = ["3", "30", "99"]
SCORES = [NOW_MS - 5, NOW_MS, NOW_MS + 1, NOW_MS + 60_000, "-inf", "inf", NOW_MS - 0.5]
IDS = [ID, ID, ID, "c" * 32, "short", "vt", "maxsize", "a:b"]

USUAL_CALLS = {
    "send": ["", "", "", RANDOM, "x"],
    "receive": ["", "", 1],
    "delete": [ID, 1],
}


def sources(name: str) -> tuple[str, str]:
    """The script, and the same without its short way; both at one moment."""
    text = re.sub(
        r"(redis\.)?call\('TIME'\)", f"{{'{TIME_S}', '{TIME_US}'}}", load("rsmq", name).text
    )
    at = text.index("\nif ", text.index("\n-- One message"))
    return text, f"{text[:at]}\nif false and {text[at + 4 :]}"


def number(draw: random.Random) -> str | None:
    return draw.choice(USUAL if draw.random() < 0.7 else NUMBERS)


def state(draw: random.Random) -> tuple[dict[str, str], dict[str, Any]]:
    """A queue as any client, or a damage, may leave it: its hash and its sorted set."""
    fields = {name: number(draw) for name in ("vt", "delay", "totalrecv", "totalsent")}
    fields["maxsize"] = draw.choice(["65536", "1024", "-1", number(draw)])
    scores = {}
    for id in draw.sample(IDS, draw.randint(0, 2)):
        scores[id] = draw.choice(SCORES[:2] if draw.random() < 0.7 else SCORES)
        fields |= {
            id: draw.choice(["hello", "hello", None]),
            f"{id}:rc": number(draw) if draw.random() < 0.6 else None,
            f"{id}:fr": number(draw),
        }
    return {name: text for name, text in fields.items() if text is not None}, scores


def call(draw: random.Random, name: str, fields: dict[str, str]) -> list[Any]:
    if name == "send":
        body = draw.choice(["hello", "", "x" * 1_025, "x" * 70_000])
        return ["", draw.choice(["", "", "5"]), "", RANDOM, body]
    if name == "receive":
        return ["", draw.choice(["", "", "0", "5", "9999999", "007"]), draw.choice([1, 1, 2])]
    id = draw.choice([*(one for one in IDS if one in fields), draw.choice(IDS)])
    return [id, draw.choice([fields.get(f"{id}:rc", "1"), "", "1", "0", "7"])]


def outcome(redis: Any, source: str, arguments: list[Any], fields: Any, scores: Any) -> Any:
    redis.flushdb()
    if fields:
        redis.hset("n:q:Q", mapping=fields)
    if scores:
        redis.zadd("n:q", scores)
    try:
        reply = redis.eval(source, 2, "n:q", "n:q:Q", *arguments)
    except ResponseError as error:
        reply = re.sub(r"script: \w+, on.*", "", str(error))
    return reply, redis.hgetall("n:q:Q"), redis.zrange("n:q", 0, -1, withscores=True)


@pytest.mark.parametrize("name", ["send", "receive", "delete"])
def test_short_way_of_one_message_changes_and_answers_what_the_long_way_does(redis, name):
    short, whole = sources(name)
    draw, changed = random.Random(name), 0
    for _ in range(600):
        fields, scores = state(draw)
        arguments = call(draw, name, fields)
        expected = outcome(redis, whole, arguments, fields, scores)
        assert outcome(redis, short, arguments, fields, scores) == expected, (
            arguments,
            fields,
            scores,
        )
        changed += expected[0][:1] == [b"ok"]
    assert changed > 50


@pytest.mark.parametrize("name", sorted(USUAL_CALLS))
@pytest.mark.parametrize("damaged", ["n:q", "n:q:Q"])
def test_key_of_another_type_is_told_before_anything_is_written(redis, name, damaged):
    redis.zadd("n:q", {ID: 1})
    redis.hset("n:q:Q", mapping={"vt": 30, "delay": 0, "maxsize": -1, ID: "x", f"{ID}:rc": 1})
    redis.set(damaged, "text")
    before = redis.dump("n:q"), redis.dump("n:q:Q")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        redis.eval(sources(name)[0], 2, "n:q", "n:q:Q", *USUAL_CALLS[name])
    assert (redis.dump("n:q"), redis.dump("n:q:Q")) == before
