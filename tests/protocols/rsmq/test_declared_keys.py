"""Every key that a script touches is among its KEYS: the server itself checks, call by call."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.client.connection import connect
from jobq.client.functions import load_library
from jobq.client.scripts import folder
from jobq.config import ServerSettings
from jobq.protocols.rsmq import InvalidFormatError, Rsmq
from tests.confined import Confined


@pytest.fixture
def confined(server: Any, redis: Any) -> Any:
    client = Confined(server.url, redis, "rsmq:rt:q", "rsmq:rt:dead", one_slot=False)
    yield client
    client.close()


def every_call(rsmq: Rsmq) -> None:
    rsmq.create_queue("q")
    rsmq.create_queue("dead")
    rsmq.send_messages("q", ["a", "b", "c", "d"])
    a, b = rsmq.receive_messages("q", 2, vt=0)
    rsmq.change_message_visibility("q", a.id, 0)
    rsmq.delete_message("q", a.id)
    rsmq.send_message("dead", "e")
    [revived] = rsmq.peek("dead")
    assert rsmq.move_messages("dead", "q", [revived, ("0" * 32, 1)]) == [True, False]
    rsmq.pop_message("q")
    rsmq.next_messages("q", [b])
    rsmq.set_queue_attributes("q", vt=1, delay=0, maxsize=-1)
    rsmq.peek("q", "all")
    rsmq.repair("q")
    rsmq.list_queues()
    with pytest.raises(InvalidFormatError):
        rsmq.delete_queue("not:listed")
    rsmq.purge("q")
    rsmq.delete_queue("q")
    assert b.message == "b"


def test_scripts_touch_only_the_keys_they_declare(confined):
    every_call(Rsmq(confined, realtime=True))
    assert {path.stem for path in (folder() / "rsmq").glob("[!_]*.lua")} == confined.ran


@pytest.mark.parametrize(
    "path", sorted((folder() / "rsmq").glob("*.lua")), ids=lambda path: path.stem
)
def test_script_builds_no_key_names_of_its_own(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        for call in line.split("redis.call(")[1:]:
            parts = [part.strip() for part in call.split(",")]
            assert ".." not in parts[1] if len(parts) > 1 else True, line


def test_every_call_works_as_a_function_of_the_server(server, redis):
    """For users who may only FCALL; see jobq functions."""
    client = connect(settings=ServerSettings(url=server.url, functions=True))
    load_library(client)
    try:
        every_call(Rsmq(client, realtime=True))
        assert redis.info("commandstats")["cmdstat_fcall"]["calls"] > 5
    finally:
        client.close()
        redis.function_flush()
