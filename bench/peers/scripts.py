"""The limit: a bare loop over jobq's own scripts, `finish` of 64 and the next 64 in one round trip.

It doesn't watch children, renew locks, handle failures or read settings: only the cost of the scripts, of decoding
JSON and of the handler remains. Enqueue one at a time is EVALSHA on a bare connection.
"""

from __future__ import annotations

import json
import secrets
import sys
from itertools import repeat
from typing import Any

from redis import ConnectionPool

import jobq
from bench.peers import place
from bench.peers.handlers import HANDLERS
from jobq.client.numbered_calls import Caller
from jobq.client.scripts import wire
from jobq.queue.queue import enqueue_values
from jobq.queue.types import Ending

BATCH = 64
_queue = jobq.Queue("bench", jobq.connect(place.URL))


def each(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """EVALSHA with a fresh mid, by hand."""
    _queue.enqueue(_content(handler, ()))
    script, caller, values = _queue.scripts["enqueue"], Caller(), enqueue_values()
    connection = ConnectionPool.from_url(place.URL).make_connection()
    for each_arguments in arguments:
        call = script.numbered(
            caller, values, (secrets.token_urlsafe(12), _content(handler, each_arguments))
        )
        connection.send_packed_command([wire(call.command)])
        connection.read_response()


def many(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """1,000 to a round trip, every content the same bytes."""
    _queue.enqueue_many(repeat(_content(handler, arguments[0]), len(arguments)))


def _content(handler: str, arguments: tuple[Any, ...]) -> bytes:
    return json.dumps([handler, arguments]).encode()


def worker(processes: int) -> list[list[str]]:
    """Return the commands of this many loops."""
    return [[sys.executable, "-m", "bench.peers.scripts"]] * processes


def loop() -> None:
    """Run until killed."""
    caller = Caller()
    handed = _queue.dequeue(BATCH, caller=caller)
    while True:
        endings = []
        for message in handed.messages:
            handler, arguments = json.loads(message.content)
            HANDLERS[handler](*arguments)
            endings.append(Ending(mid=message.mid, token=message.token))
        finished = _queue.finish(endings, dequeue=BATCH, caller=caller)
        assert finished.dequeued
        handed = finished.dequeued


if __name__ == "__main__":
    loop()
