"""What limits promise, over random histories; and each rule of the scripts is needed for it."""

from __future__ import annotations

import os

import pytest

from jobq.client.scripts import load
from tests.limits.model import Broken, greedy, resetting, slots, starts, stepping

#: A fault of a script: its name, what is changed, and into what.
MUTANTS = {
    "a start exactly one span later": ("take", "nth + window_ms + 1)", "nth + window_ms)"),
    "the margin isn't counted": ("take", "span_ms + margin_ms", "span_ms"),
    "one start too many": ("take", "LINDEX', ring, most - cost", "LINDEX', ring, most - cost + 1"),
    "a cost counts once": ("take", "while left > 0 do", "left = 1 while left > 0 do"),
    "the ring is cut short": ("take", "0, most - 1)", "0, math.max(0, most - 2))"),
    "a rate that isn't lessened": ("take", "(most - at_once(most))", "most"),
    "a hold that is forgotten": ("take", "if free_at > now_ms or held > clock_ms then", "if free_at > now_ms then"),
    "a hold that is made shorter": ("hold", "held = math.max(held, now_ms + hold_ms)", "held = now_ms + hold_ms"),
    "a start that is repeated": ("take", "if call.kept then", "if false then"),
    "starts are put at the tail": ("take", "'LPUSH'", "'RPUSH'"),
    "idle time is given back": ("settle", "and idle_at <= started", ""),
    "more is given back than was unused": ("settle", "ring, unused, text", "ring, 0, text"),
    "giving back is repeated": ("settle", "if call.kept then", "if false then"),
    "one slot too many": ("enter", "'+inf') >= most", "'+inf') > most"),
    "slots of the dead stay": ("enter", "local after = '(' .. text(now_ms)", "local after = '-inf'"),
    "a hold gives slots": ("enter", "if held > now_ms then", "if false then"),
    "a token counts twice": ("enter", "if not mine then", "if true then"),
    "renewing takes what is another's": ("renew", "< most", "< most + 1"),
    "renewing counts the dead": ("renew", "'ZREMRANGEBYSCORE', holders, '-inf', text(now_ms)", "'ZCARD', holders"),
    "a long lease after a step of the clock": ("enter", "redis.call('ZADD', holders, latest, holder)", ""),
    "a long lease after a step and a renewal": ("renew", "redis.call('ZADD', holders, latest, holder)", ""),
    "turns of the former rate": ("set", "redis.call('HDEL', state, 'advice')", ""),
}  # fmt: skip
HISTORIES, STEPS = (2_000 if os.environ.get("JOBQ_LIMITS") == "large" else 12), 60


def explore(redis, histories, count, changed):
    for seed in range(count):
        for history in histories:
            history(redis, seed, STEPS, changed)


def test_limits_keep_what_they_promise(redis):
    explore(redis, [greedy, starts, slots, stepping, resetting], HISTORIES, {})


@pytest.mark.one_server
@pytest.mark.parametrize("fault", MUTANTS)
def test_model_notices(redis, fault):
    name, sound, faulty = MUTANTS[fault]
    text = load("limit", name).text
    assert sound in text, fault
    changed = {name: text.replace(sound, faulty)}
    of_rates, of_slots = [greedy, starts, resetting], [slots, stepping]
    if name == "set":
        histories = [resetting]
    else:
        histories = of_rates * (name not in ("enter", "renew"))
        histories += of_slots * (name not in ("take", "settle"))
    with pytest.raises(Broken):
        explore(redis, histories, 500, changed)
