"""An idle child waits longer than its socket's timeout, on a marker and never on a job."""

from __future__ import annotations

from jobq.client.connection import connect
from jobq.client.waiter import WakeWaiter
from jobq.config import ServerSettings

from .conftest import until


def waiting(redis):
    """Ids of the connections that waited last."""
    return {one["id"] for one in redis.client_list() if one["cmd"] == "blpop"}


def test_sleep_outlasts_the_timeout_of_a_socket_on_one_connection(server, redis):
    client = connect(settings=ServerSettings(url=server.url, socket_timeout_s=0.5))
    sleep = WakeWaiter(client, ["wake"])
    assert sleep.wait(1.0, ())
    first = waiting(redis)
    assert len(first) == 1
    for _ in range(3):
        assert sleep.wait(1.0, ())
    assert waiting(redis) == first
    sleep.end(())
    client.close()


def test_no_command_blocks_on_anything_but_the_marker(start, send, ledger, redis, queue):
    worker = start("--processes", "2")
    until(lambda: redis.info("clients")["blocked_clients"] == 2)
    with redis.monitor() as monitor:
        redis.ping()
        seen = []
        send("quick", "a")
        until(lambda: ledger.lines("end", "a"))
        until(lambda: redis.info("clients")["blocked_clients"] == 2)
        redis.echo("over")
        for command in monitor.listen():
            seen.append(command["command"])
            if command["command"] == "ECHO over":
                break
    blocking = [
        one for one in seen if one.split()[0].upper() in ("BLPOP", "BRPOP", "BLMOVE", "BZPOPMIN")
    ]
    assert blocking
    assert all(one.split()[1:-1] == [queue.wake_key] for one in blocking), blocking
    assert worker.stop() == 0


def test_idle_worker_starts_what_is_ready_when_a_pause_for_a_time_ends(
    start, send, ledger, redis, queue
):
    worker = start("--processes", "1")
    until(lambda: redis.info("clients")["blocked_clients"] == 1)
    ends_ms = queue.admin.pause("1s")
    send("quick", "a")
    until(lambda: ledger.lines("end", "a"))
    assert queue.client.clock_ms() >= ends_ms
    assert worker.stop() == 0
