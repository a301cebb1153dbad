"""Small scopes, every interleaving: each message in exactly one place, at most one good holder, none left behind."""

from __future__ import annotations

import pytest

from tests.model.breadth_first import ENOUGH
from tests.model.explored import Explored
from tests.protocols.reliable.explorer import Explorer, Scope

SCOPES = (
    Scope("one dies", pushes=2, gives_back=0, recovers=0),
    Scope("one recovers", pushes=2, deaths=0, gives_back=0, recovers=1),
    Scope("a push of two, given back", pushes=1, together=2, deaths=0, recovers=0),
    Scope("two at once", pushes=1, together=2, count=2, gives_back=0, recovers=0),
    Scope("dead after two", pushes=1, max_deliveries=2, recovers=2),
    Scope("three in line", pushes=1, together=2, clients="ABC", gives_back=0, recovers=0),
)
#: Steps of the short form: three more than the longest way to a fault.
DEPTH = 8
#: What is changed in the scripts, into what, and the scope that finds it.
FAULTS = {
    "lost tickets are never issued again":
        ("promised > 0 and math.abs", "false and math.abs", 0),
    "a ticket takes the next message and leaves its own":
        ("redis.call('LREM', undelivered, 1, id) == 0", "false", 0),
    "acknowledged without a look at the holder":
        ("and (not token or holders[i] == token)", "", 1),
    "a recovered message keeps its old holder":
        ("  if token ~= '' then\n", "  if token ~= '' and ntokens == 0 then\n", 1),
    "a message that is given back is forgotten":
        ("line_up(alive, options.FRONT)", "", 2),
    "a dead message stays pending":
        ("  redis.call('ZREM', delivered, id)\n  redis.call('HDEL', tokens, id)\n  redis.call('ZADD', dead",
         "  redis.call('ZADD', dead", 4),
    "a repeated pop pops again":
        ("kept = last == number and string.sub", "kept = false and string.sub", 0),
    "the count outlives its message":
        ("  if nunacked > 0 then redis.call('HDEL', unacked, unpack(some)) end\n", "", 1),
    "the holder outlives its message":
        ("  if ntokens > 0 then redis.call('HDEL', tokens, unpack(some)) end\n", "", 0),
    "what this call recovered is recovered again":
        ("math.min(at - elapsed + 1, last + 1 / 2048)", "at + 1", 1),
}  # fmt: skip


NAMES = FAULTS


def explored(name: str) -> Explored:
    """Explore the scope of a fault with it."""
    before, after, scope = FAULTS[name]
    return Explorer(SCOPES[scope], (before, after), depth=DEPTH - 1).run()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "depth", [DEPTH, pytest.param(None, marks=pytest.mark.long)], ids=["short", "exhausted"]
)
@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: scope.name)
def test_no_interleaving_loses_or_doubles_a_message(scope: Scope, depth: int | None) -> None:
    result = Explorer(scope, depth=depth).run()
    assert not result.violation, result
    assert result.transitions >= ENOUGH, result


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", FAULTS)
def test_explorer_finds_the_fault_when_it_is_sown(fault: str) -> None:
    result = explored(fault)
    assert result.violation
    assert "LuaError" not in result.violation, "the fault broke the script instead of the promise"
