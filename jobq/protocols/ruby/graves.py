"""Dead messages that came from Ruby, shown to Ruby as well: read from jobq's dead, so that none is missed.

Whatever made a message dead counts: errors, crashes, an unknown job, content that can't be read. Showing one twice
changes nothing; what was shown is remembered per queue, so that one that a person deletes over there stays so.
What can't be shown costs the others nothing: the log has it, and jobq's dead.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jobq.errors import CodecError, JobqError, ScriptError
from jobq.jobs.signing import opened, seal_of, shown_text
from jobq.protocols.ruby.burying import bury, bury_refused
from jobq.protocols.ruby.reading import read_back, refused_back
from jobq.queue.keys import key
from jobq.queue.types import text_of

if TYPE_CHECKING:
    from jobq.client.connection import Client
    from jobq.queue.queue import Queue
    from jobq.queue.types import DeadMessage

logger = logging.getLogger("jobq")
PAGE = 100
#: Through the pages, until what comes and goes in between leaves none unread.
PASSES = 20


class Graves:
    """For some queues; `ruby`: a client of the server where Ruby's dead are shown."""

    def __init__(self, ruby: Client, queues: Sequence[Queue]) -> None:
        self._ruby, self._queues = ruby, queues

    def __str__(self) -> str:
        return ", ".join(queue.name for queue in self._queues)

    def fill(self) -> int:
        """Show what died since the last time; how many."""
        return sum(self._fill(queue) for queue in self._queues)

    def _fill(self, queue: Queue) -> int:
        name = f"{queue.prefix}shown-to-ruby"
        until, shown_then = _noted(queue.client.command("GET", name))
        fresh = self._died_since(queue, until, shown_then)
        if not fresh:
            return 0
        fresh.sort(key=_moment, reverse=True)
        for died in reversed(fresh):
            self._show(queue, died)
        latest = fresh[0].died_at
        ids = [died.dead_id for died in fresh if died.died_at == latest]
        if latest == until:
            ids += shown_then
        queue.client.command("SET", name, json.dumps([latest, ids]))
        return len(fresh)

    def _died_since(self, queue: Queue, until: int, shown: Sequence[str]) -> list[DeadMessage]:
        """The dead from the moment `until` on but for those shown, each once.

        Others add to the dead and take away in between, which moves the pages. So their ids are asked for first,
        and the pages are gone through until none of these is left unread.
        """
        wanted = self._ids(queue, until) - set(shown)
        found: dict[str, DeadMessage] = {}
        for _ in range(PASSES):
            if not wanted - found.keys():
                break
            for died in _pages(queue, until):
                found.setdefault(died.dead_id, died)
            wanted &= self._ids(queue, until)
        else:
            raise ScriptError(f"the dead of {queue.name} change faster than they can be read")
        return [died for dead_id, died in found.items() if dead_id not in shown]

    def _ids(self, queue: Queue, until: int) -> set[str]:
        dead = key(queue.prefix, "dead")
        return {
            text_of(one) for one in queue.client.command("ZRANGE", dead, until, "+inf", "BYSCORE")
        }

    def _show(self, queue: Queue, died: DeadMessage) -> None:
        seal = seal_of(queue.client)
        reason = shown_text(seal, "reason", queue.name, died.mid, died.reason)
        died = died._replace(reason=reason)
        try:
            content = opened(seal, queue.name, died.mid, died.content)
            shown = self._shown(content, died)
        except CodecError:
            return
        except JobqError:
            raise
        except Exception:
            logger.exception("%s can't be shown among Ruby's dead; jobq dead list has it", died.mid)
            return
        if shown:
            logger.info("%s is shown among Ruby's dead too", died.mid)

    def _shown(self, content: bytes, died: DeadMessage) -> bool:
        if found := read_back(content):
            return bury(self._ruby, *found, died)
        if refused := refused_back(content):
            bury_refused(self._ruby, *refused, died)
            return True
        return False


def _pages(queue: Queue, until: int) -> Iterator[DeadMessage]:
    """The dead from the newest back to those of the moment `until`."""
    offset = 0
    while page := queue.admin.dead(offset, PAGE):
        for died in page:
            if died.died_at < until:
                return
            yield died
        offset += len(page)


def _noted(stored: bytes | None) -> tuple[int, list[str]]:
    """Up to when the dead were shown, and which of the last moment; bytes that say neither count as none."""
    try:
        until, shown = json.loads(stored or b"[-1,[]]")
        return int(until), [str(one) for one in shown]
    except (ValueError, TypeError, OverflowError, RecursionError):
        return -1, []


def _moment(died: DeadMessage) -> int:
    return died.died_at
