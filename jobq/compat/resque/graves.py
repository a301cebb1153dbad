"""Dead messages that came from Ruby, shown to Ruby as well: read from jobq's dead, so that none is missed.

Whatever made a message dead counts: errors, crashes, an unknown job, content that can't be read. Showing one twice
changes nothing; what was shown is remembered per queue, so that one that a person deletes over there stays so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jobq.compat.resque.burying import bury
from jobq.compat.resque.reading import read_back
from jobq.errors import CodecError
from jobq.jobs.seal import opened, seal_of

if TYPE_CHECKING:
    from jobq.engine.connection import Client
    from jobq.engine.message import DeadMessage
    from jobq.engine.queue import Queue

logger = logging.getLogger("jobq")
PAGE = 100


class Graves:
    """For some queues; `ruby`: a client of the server where Ruby's dead are shown."""

    def __init__(self, ruby: Client, queues: Sequence[Queue]) -> None:
        self._ruby, self._queues = ruby, queues

    def fill(self) -> int:
        """Show what died since the last time; how many."""
        return sum(self._fill(queue) for queue in self._queues)

    def _fill(self, queue: Queue) -> int:
        key = f"{queue.prefix}shown-to-ruby"
        until, shown_then = json.loads(queue.client.command("GET", key) or b"[-1,[]]")
        fresh = [
            died
            for died in self._newest(queue, until)
            if died.died_at > until or died.dead_id not in shown_then
        ]
        if not fresh:
            return 0
        fresh.sort(key=_moment, reverse=True)
        for died in reversed(fresh):
            self._show(queue, died)
        latest = fresh[0].died_at
        ids = [died.dead_id for died in fresh if died.died_at == latest]
        if latest == until:
            ids += shown_then
        queue.client.command("SET", key, json.dumps([latest, ids]))
        return len(fresh)

    def _newest(self, queue: Queue, until: int) -> Iterator[DeadMessage]:
        """The dead from the newest back to those of the moment `until`, each once.

        Others add to them and take away meanwhile, which moves every page: each must begin with one that is known.
        """
        seen: set[str] = set()
        offset = 0
        while True:
            page = queue.dead(offset, PAGE)
            if offset and not any(died.dead_id in seen for died in page):
                offset = max(0, offset - PAGE + 1)
                continue
            for died in page:
                if died.died_at < until:
                    return
                if died.dead_id not in seen:
                    seen.add(died.dead_id)
                    yield died
            if len(page) < PAGE:
                return
            offset += PAGE - 1

    def _show(self, queue: Queue, died: DeadMessage) -> None:
        try:
            content = opened(seal_of(queue.client), queue.name, died.mid, died.content)
        except CodecError:
            return
        found = read_back(content)
        if found and bury(self._ruby, *found, died):
            logger.info("%s is shown among Ruby's dead too", died.mid)


def _moment(died: DeadMessage) -> int:
    return died.died_at
