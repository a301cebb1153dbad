"""Who may write to one queue can overwrite the record of a caller's last call there; the other queues go on."""

from __future__ import annotations

import pytest

from jobq.queue import keys
from jobq.queue.queue import Queue
from tests.lifecycle.conftest import until


def caller_of(redis, queue):
    """Who holds something of this queue."""
    tokens = redis.hvals(keys.key(queue.prefix, "tokens"))
    return tokens[0].decode().split(".")[0] if tokens else None


@pytest.mark.parametrize(
    "record",
    [b"x9007199254740990\x1e\x1e", b"9007199254740990\x1e\x1e"],
)
def test_worker_goes_on_when_somebody_closes_its_caller_on_one_queue(
    record, client, redis, start, send, ledger
):
    bad, good = Queue("bad", client), Queue("low", client)
    worker = start("--processes", "1", "--lease", "5s", queues="bad,low")
    send("gated", "a", to=bad)
    until(lambda: ledger.lines("start"))
    redis.set(f"{bad.prefix}call:{caller_of(redis, bad)}", record)
    ledger.gate("a").touch()
    for number in range(50):
        send("quick", f"q{number}", to=good)
    send("quick", "b", to=bad)
    until(lambda: len(ledger.lines("end")) >= 52)
    assert worker.stop() == 0
    assert "exited with" not in worker.log
    assert "Traceback" not in worker.log
