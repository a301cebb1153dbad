"""A call that may not happen twice isn't sent twice once its reply is lost; one that wasn't taken, is.

Both drivers of the same rules: the blocking client, and the asyncio client.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterator
from typing import Any

import pytest

from jobq.chaos.proxy import DOWN, HOST, Proxy
from jobq.client.aio import AsyncClient
from jobq.client.connection import Client
from jobq.client.numbered_calls import Caller, ScriptCall
from jobq.client.pipelining import PipelinedCalls
from jobq.client.scripts import Script
from jobq.config import ServerSettings
from jobq.errors import ScriptError, ServerFullError, UnavailableError
from jobq.queue.queue import Queue, enqueue_values

COUNT = "return {'ok', redis.call('INCRBY', KEYS[1], ARGV[1])}"
TWICE = "if redis.call('INCR', KEYS[1]) < 3 then return {'again'} end return {'ok', 3}"


@pytest.fixture
def proxy(server: Any, redis: Any) -> Iterator[Proxy]:
    proxy = Proxy(server.socket)
    yield proxy
    proxy.close()


@pytest.fixture
def far(proxy: Proxy) -> Iterator[Client]:
    """A client by way of the proxy."""
    client = Client(ServerSettings(url=f"redis://{HOST}:{proxy.port}", patience_s=10))
    yield client
    client.close()


@pytest.fixture
def counting(tmp_path: Any) -> Any:
    """counting(repeatable, lua): a request that adds 1 to `n`; its result is the sum."""

    def make(repeatable: bool, lua: str = COUNT, by: int = 1) -> ScriptCall[int]:
        path = tmp_path / f"{hash(lua)}.lua"
        path.write_text(f"#!lua\n{lua}")
        return ScriptCall(Script(path), ("n",), (by,), lambda reply: int(reply[1]), repeatable)

    return make


class Awaited:
    """The asyncio client, for tests that wait for each call."""

    def __init__(self, client: Client) -> None:
        self.client = AsyncClient(client)
        self._runner = asyncio.Runner()

    def ask(self, call: ScriptCall[Any]) -> Any:
        return self._runner.run(self.client.ask(call))

    def run(self, coroutine: Any) -> Any:
        return self._runner.run(coroutine)

    def close(self) -> None:
        self._runner.run(self._close())
        self._runner.close()

    async def _close(self) -> None:
        self.client.close()


@pytest.fixture(params=["blocking", "asyncio"])
def driver(request: Any, far: Client) -> Iterator[Any]:
    """Either driver of the rules, by way of the proxy."""
    if request.param == "blocking":
        yield far
        return
    awaited = Awaited(far)
    yield awaited
    awaited.close()


def test_request_is_not_repeated_when_its_reply_was_lost(driver, proxy, redis, counting):
    request = counting(False)
    assert driver.ask(request) == 1
    proxy.lose_reply(1)
    with pytest.raises(UnavailableError, match="reply was lost"):
        driver.ask(request)
    assert redis.get("n") == b"2"
    assert driver.ask(request) == 3


def test_harmless_request_is_repeated_when_its_reply_was_lost(driver, proxy, redis, counting):
    request = counting(True)
    driver.ask(request)
    proxy.lose_reply(1)
    assert driver.ask(request) == 3


def test_script_is_loaded_where_the_server_lost_it(driver, redis, counting):
    request = counting(False)
    assert driver.ask(request) == 1
    redis.script_flush()
    assert driver.ask(request) == 2


def test_error_of_a_script_is_its_own_and_is_not_repeated(driver, redis, counting):
    redis.set("n", "text")
    with pytest.raises(ScriptError, match="not an integer"):
        driver.ask(counting(True))
    assert redis.get("n") == b"text"


def test_call_ends_with_the_patience_where_no_server_is(driver, proxy, counting):
    proxy.close()
    (driver if isinstance(driver, Client) else driver.client.client).patience_s = 0.2
    with pytest.raises(UnavailableError, match="nothing was sent"):
        driver.ask(counting(True))


def test_numbered_call_of_asyncio_is_repeated_and_answered_once(far, proxy, redis):
    awaited, caller, queue = Awaited(far), Caller(), Queue("low", far)

    def enqueue(mid: str) -> Any:
        script = queue.scripts["enqueue"]
        return awaited.run(script.acall(awaited.client, caller, enqueue_values(), (mid, b"v")))

    assert enqueue("first") == [b"added", b""]
    proxy.lose_reply(1)
    assert enqueue("second") == [b"added", b""]
    reply = awaited.run(queue.scripts["status"].arun(awaited.client, {"mid": "second", "now": ""}))
    assert reply[0] == b"queued"
    awaited.close()


def test_cancelled_coroutine_leaves_no_reply_for_the_next(far, proxy, redis, counting):
    async def both() -> Any:
        client = AsyncClient(far)
        assert await client.ask(counting(True)) == 1
        proxy.hold((DOWN,))
        second = asyncio.ensure_future(client.ask(counting(True)))
        while redis.get("n") != b"2":
            await asyncio.sleep(0.001)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        proxy.release()
        found = await client.ask(counting(True))
        client.close()
        return found

    assert asyncio.run(both()) == 3


def test_arguments_are_given_by_the_names_that_the_script_unpacks(client):
    queue = Queue("low", client)
    with pytest.raises(TypeError, match="takes now, lease_ms"):
        queue.scripts["extend"].run({"now": ""})
    with pytest.raises((TypeError, KeyError)):
        queue.scripts["extend"].run({"now": "", "lease": 1})


def test_request_of_asyncio_goes_on_when_its_idle_connection_was_closed(far, proxy, counting):
    awaited, request = Awaited(far), counting(False)
    assert awaited.ask(request) == 1
    proxy.reset_all()
    awaited.run(asyncio.sleep(0.1))
    assert awaited.ask(request) == 2
    awaited.close()


def test_request_goes_on_when_its_idle_connection_was_closed(far, proxy, counting):
    request = counting(False)
    far.ask(request)
    [[idle]] = far._idle.values()
    proxy.reset_all()
    assert select.select([far.fileno(idle)], [], [], 60)[0]
    assert far.ask(request) == 2


def test_request_is_called_again_as_long_as_its_reply_says_so(far, counting):
    assert far.ask(counting(False, TWICE)) == 3
    assert PipelinedCalls(far).run([counting(False, TWICE)]) == [3]


def test_pipelined_gives_each_request_its_result_or_its_error(far, redis, counting):
    redis.set("n", 5)
    outcomes = PipelinedCalls(far).run([counting(False), counting(False, by="x"), counting(True)])
    assert outcomes[0] == 6 and outcomes[2] == 7
    assert isinstance(outcomes[1], ScriptError)


def test_pipelined_with_a_lost_reply_repeats_the_harmless_and_tells_of_the_others(
    far, proxy, redis, counting
):
    flights = PipelinedCalls(far)
    flights.run([counting(True), counting(False)])
    proxy.lose_reply(1)
    repeated, untold = flights.run([counting(True), counting(False)])
    assert isinstance(untold, UnavailableError)
    assert repeated == 5 and redis.get("n") == b"5"


def test_pipelined_takes_effect_in_order_when_scripts_are_missing(far, redis, counting):
    flights = PipelinedCalls(far)
    other = COUNT.replace("INCRBY", "DECRBY")
    flights.run([counting(False)])
    redis.script_flush()
    assert flights.run([counting(False, other), counting(False), counting(False, other)]) == [
        0,
        1,
        0,
    ]


def test_pipelined_fails_each_request_when_there_is_no_server(proxy, counting):
    client = Client(ServerSettings(url=f"redis://{HOST}:{proxy.port}", patience_s=0.2))
    proxy.close()
    outcomes = PipelinedCalls(client).run([counting(True), counting(False)])
    assert [type(one) for one in outcomes] == [UnavailableError, UnavailableError]


def test_full_server_refuses_a_request_in_pipelined_as_any_other(far, redis, counting):
    try:
        redis.config_set("maxmemory", 1)
        [outcome] = PipelinedCalls(far).run([counting(False)])
        with pytest.raises(ServerFullError):
            far.ask(counting(False))
    finally:
        redis.config_set("maxmemory", 0)
    assert isinstance(outcome, ServerFullError)


def test_thousands_of_requests_fly_in_turns(far, counting):
    request = counting(False)
    assert PipelinedCalls(far).run([request] * 2_500) == list(range(1, 2_501))


def test_pipelined_in_portions_is_not_mixed_up_with_a_health_check(far, counting):
    flights = PipelinedCalls(far)
    flights.run([counting(False)])
    [[idle]] = far._idle.values()
    idle.health_check_interval, idle.next_health_check = 1e-9, 0
    assert flights.run([counting(False)] * 250) == list(range(2, 252))
