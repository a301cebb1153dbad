"""Every key that a script touches is among its KEYS: each call runs as a user who may touch no other."""

from __future__ import annotations

import pytest

from jobq.client.scripts import folder, load
from jobq.protocols.reliable import ReliableQueue
from jobq.protocols.reliable.keys import PLACES
from tests.confined import Confined

SCRIPTS = sorted(path.stem for path in (folder() / "reliable").glob("[a-z]*.lua"))


@pytest.fixture
def confined(server, redis):
    client = Confined(server.url, redis, one_slot=False)
    yield client
    client.close()


def test_scripts_touch_only_the_keys_they_declare(confined, at):
    rq = ReliableQueue(confined)
    for cycle in range(3):
        rq.configure("q", max_deliveries=2)
        ids = rq.push("q", *map(str, range(12)), now=at(cycle * 1000))
        rq.push("r", "a", now=at(cycle * 1000))
        rq.pop(8, 0, "q", "r", token="me", now=at(cycle * 1000 - 90_000 * cycle))
        rq.nack("q", *ids[:3], token="me", front=bool(cycle), now=at(cycle * 1000))
        rq.release("q", ids[3])
        rq.extend("q", ids[4])
        rq.recover("q", 3, 0, token="you")
        rq.pop(20, 0, "q", "r", recover_after=0)
        rq.pop(20, 0, "q", recover_after=0)
        rq.ack("q", ids[5])
        rq._calls.ask("rest", ["q", "r"], "RECOVER", 5)
        rq.inspect("q", 0, 5)
        rq.pending("q", 0, 5)
        dead = [one.id for one in rq.dead("q")]
        rq.revive("q", *dead[:2])
        rq.purge("q", *dead[2:4])
        rq.info("q")
        (rq.clear if cycle else rq.delete)("q")
    assert set(SCRIPTS) == confined.ran


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_takes_the_keys_in_the_one_order(name):
    bound = load("reliable", name).keys
    assert bound in ((), PLACES, (*PLACES, "last_call"))
    text = load("reliable", name).text
    assert f"{', '.join(PLACES)}" in text


@pytest.mark.parametrize(
    "path", sorted((folder() / "reliable").glob("*.lua")), ids=lambda p: p.stem
)
def test_script_builds_no_key_names_of_its_own(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        for call in line.split("redis.call(")[1:]:
            parts = [part.strip() for part in call.split(",")]
            assert len(parts) < 2 or ".." not in parts[1], line
