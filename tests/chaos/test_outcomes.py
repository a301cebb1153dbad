"""ok, fail or info: the records of a round's producer for each possible answer of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobq.chaos.ledger import Ledger
from jobq.chaos.producers import enqueue
from jobq.chaos.proxy import Proxy
from jobq.chaos.workers import wait_until
from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.errors import NotDurableError
from jobq.queue.queue import Queue


@pytest.fixture
def proxy(server: Any, redis: Any) -> Any:
    made = Proxy(server.socket)
    yield made
    redis.config_set("maxmemory", 0)
    made.close()


@pytest.fixture
def noted(proxy: Proxy, tmp_path: Any) -> Any:
    """noted(): one enqueue by way of the proxy; outcome and action as the ledger has them."""
    settings = ServerSettings(
        url=f"redis://127.0.0.1:{proxy.port}", patience_s=60, socket_timeout_s=0.5
    )
    client = connect(settings=settings)
    queue, ledger = Queue("low", client), Ledger(str(tmp_path))

    def attempt(mid: str = "m", padding: int = 0) -> tuple[str, str]:
        enqueue(queue, ledger, mid, 0.0, padding)
        invoked, *_, told = [line for line in ledger.lines() if line["mid"] == mid]
        assert (invoked["word"], told["word"]) == ("enqueue", "enqueued")
        return told["outcome"], told["action"]

    attempt.client = client  # type: ignore[attr-defined]
    yield attempt
    client.close()


def test_accepted_is_ok(noted):
    assert noted() == ("ok", "added")
    assert noted() == ("ok", "exists")


def test_lost_reply_is_asked_for_again_and_ok(noted, proxy):
    assert noted("first") == ("ok", "added")
    proxy.lose_reply(1)
    assert noted() == ("ok", "added")
    assert proxy.lost == 1


def test_memory_full_is_fail(noted, redis, queue):
    noted("first")
    redis.config_set("maxmemory", 1)
    assert noted() == ("fail", "")
    assert queue.status("m").word == "nil"


def test_error_of_a_script_is_fail(noted, redis):
    redis.set("jobq:{low}:messages", "no hash")
    assert noted() == ("fail", "")


def test_content_over_the_limit_is_fail(noted, queue):
    assert noted(padding=2 << 20) == ("fail", "")
    assert queue.status("m").word == "nil"


@pytest.mark.parametrize("ran", [True, False])
def test_no_answer_is_info_whether_it_took_effect_or_not(noted, proxy, queue, ran):
    noted("first")
    proxy.hold(["down"] if ran else ["up"])
    noted.client.should_give_up = lambda: True  # one try
    assert noted() == ("info", "")
    if ran:
        wait_until(lambda: queue.status("m").word == "queued", "it didn't take effect", 60)
    else:
        assert queue.status("m").word == "nil"


def test_no_server_is_info(noted, proxy):
    proxy.close()
    noted.client.should_give_up = lambda: True  # one try
    assert noted() == ("info", "")


def test_not_durable_is_info_until_a_repetition_is(noted, monkeypatch):
    replies: list[Callable[[], Any]] = []
    true = Queue.enqueue

    def flaky(queue: Queue, *args: Any, **options: Any) -> Any:
        done = true(queue, *args, **options)
        if replies:
            replies.pop()
            raise NotDurableError("not confirmed", [done.mid])
        return done

    monkeypatch.setattr(Queue, "enqueue", flaky)
    replies.append(lambda: None)
    assert noted() == ("ok", "exists")
