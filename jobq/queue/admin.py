"""Administrative operations, such as counting messages, pausing queues, and reviving dead messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, Protocol

from jobq.client.connection import Client
from jobq.client.names import base_of, is_partition
from jobq.client.numbered_calls import BoundScripts, Caller, Callers, ScriptCall, moment
from jobq.client.pipelining import run_all
from jobq.client.scripts import Argument
from jobq.config import duration_s
from jobq.durations import DAY_MS, Duration, counted
from jobq.errors import ConfigError, ScriptError
from jobq.events import LEVELS, MAXLENS
from jobq.queue import keys
from jobq.queue.bin import ANY, HOUR_S, Bin
from jobq.queue.folding import folded
from jobq.queue.fsck import fsck
from jobq.queue.members import OutboxBacklog
from jobq.queue.mids import checked_mid
from jobq.queue.moving import SEALED, Accepting, instead_of, revive_moved
from jobq.queue.partitions import read_map
from jobq.queue.remembered import REMEMBERS
from jobq.queue.routing import SealedError
from jobq.queue.rules import KeyPage, KeyRow, key_rows
from jobq.queue.types import (
    CRASH_LIMIT,
    FENCES_PER_EPOCH,
    PER_CALL,
    Counts,
    DeadLimits,
    DeadMessage,
    Entry,
    LoggedTick,
    Page,
    Place,
    Rescheduled,
    Sample,
    Schedules,
    Ticked,
    TickState,
    Upkeep,
    Violation,
    WaitingHead,
    checked_key,
    text_of,
)

#: Maximum duration of a pause that doesn't wait for `resume`.
MAX_PAUSE_MS = 366 * DAY_MS
#: Maximum number of messages in a page.
PAGE = 1_000
#: Messages per page when several pages are read. Such a page occupies the server for at most a few milliseconds.
SHORT_PAGE = 250
#: Largest allowed limits on the number of dead messages, and on their age in ms.
MAX_DEAD, MAX_MS = 10**9, 3_153_600_000_000
#: Maximum length of an attempt's log with its seal, in bytes.
MAX_LOG_LENGTH = 100_000
#: Lua rounds whole numbers above this number.
MAX_NUMBER = 2**53
Values = dict[str, Argument]
NOTHING: Mapping[str, Argument] = MappingProxyType({})


class Administered(Accepting, Protocol):
    """The queue interface that `Admin` needs.

    Attributes:
        is_alone: Whether methods act only on this queue, without its partitions.
    """

    name: str
    client: Client
    scripts: BoundScripts
    callers: Callers
    is_alone: bool


class Admin:
    """Administrative operations on one queue; get this object from `queue.admin`."""

    def __init__(self, queue: Administered, queue_of: Callable[[str], Administered]) -> None:
        self.name, self.client, self.scripts = queue.name, queue.client, queue.scripts
        self._is_alone, self._queue_of = queue.is_alone or is_partition(queue.name), queue_of
        self._callers = queue.callers
        self.prefix = keys.prefix(self.client.namespace, self.name)

    def counts(self) -> Counts:
        """Return the number of messages in each state.

        For a partitioned queue, the numbers of its partitions are added up.
        """
        return self.sample().counts

    def sample(self) -> Sample:
        """Return the queue's counts, its counters for computing rates between two samples, and its next message.

        For a partitioned queue, the figures of its partitions are added up.
        """
        own = _sample(self.scripts["counts"].run())
        if self._is_alone or not own.sealed:
            return own
        calls = [place.sample_call() for place in self.partitions()]
        return folded([own, *run_all(self.client, calls)])

    def sample_call(self) -> ScriptCall[Sample]:
        """Return a `sample` call to send together with other calls. The sample doesn't include partitions."""
        script = self.scripts["counts"]
        return ScriptCall(script.script, script.keys, (), _sample)

    def content(
        self, place: Place = "ready", offset: int = 0, limit: int = 100, *, now: int | None = None
    ) -> Page:
        """Return a page of the messages in `place`: at most 1,000 messages with about 256 KiB of content.

        Unlike `iter_entries`, this ignores partitions.
        """
        if place not in ("ready", "due", "circle", "lines"):
            raise ConfigError(
                f"place {place!r} is unknown; use 'ready', 'due', 'circle' or 'lines'"
            )
        _check_page(offset, limit)
        values = {"place": place, "offset": offset, "limit": limit, "now": moment(now)}
        return _page(place, offset, self.scripts["content"].run(values))

    def content_call(
        self, place: Place, offset: int, limit: int, *, now: int | None = None
    ) -> ScriptCall[Page]:
        """Return a `content` call to send together with other calls."""
        script = self.scripts["content"]
        values = {"place": place, "offset": offset, "limit": limit, "now": moment(now)}
        args = script.script.order(values)
        return ScriptCall(
            script.script, script.keys, args, lambda reply: _page(place, offset, reply)
        )

    def keys(self, cursor: int = 0, limit: int = 100, *, now: int | None = None) -> KeyPage:
        """Return a page of the keys that have messages or are held, in no particular order.

        Unlike `iter_keys`, this ignores partitions.
        """
        _check_page(cursor, limit)
        return _key_page(
            self.scripts["lines"].run({"now": moment(now), "cursor": cursor, "limit": limit})
        )

    def keys_call(self, limit: int = 100) -> ScriptCall[KeyPage]:
        """Return a call that reads the first page of `keys`, to send together with other calls."""
        script = self.scripts["lines"]
        args = script.script.order({"now": moment(None), "cursor": 0, "limit": limit})
        return ScriptCall(script.script, script.keys, args, _key_page)

    def iter_keys(self) -> Iterator[KeyRow]:
        """Yield all keys that have messages or are held, page by page.

        A key that changes between two pages may be yielded twice.
        """
        for place in self.places():
            cursor: int | None = 0
            while cursor is not None:
                page = place.keys(cursor, SHORT_PAGE)
                yield from page.rows
                cursor = page.next_offset

    def has_keys(self) -> bool:
        """Return whether the queue has ever had keys or rules, which workers before 1.0 don't support."""
        return bool(self.client.command("HEXISTS", keys.key(self.prefix, "meta"), "turn"))

    def pause(self, for_: Duration | None = None, *, now: int | None = None) -> int:
        """Pause the queue until `resume`, or for the duration `for_`. Running jobs continue.

        Return the end of the pause in epoch ms; 0 if only `resume` ends it. A second call replaces the first pause.
        """
        for_ms: int | str = "" if for_ is None else round(duration_s(for_) * 1000)
        if for_ms != "" and not 1 <= int(for_ms) <= MAX_PAUSE_MS:
            raise ConfigError(
                f"a pause of {for_!r} is out of range; it must last between 1 ms and a year"
            )
        values: dict[str, Argument] = {"for_ms": for_ms, "now": moment(now)}
        return max(int(place.scripts["pause"].run(values)[1]) for place in self.places())

    def resume(self) -> None:
        """End a pause."""
        for place in self.places():
            place.scripts["resume"].run()

    def places(self) -> list[Admin]:
        """Return the `Admin` of this queue, then of each of its partitions."""
        return [self, *self.partitions()]

    def partitions(self) -> list[Admin]:
        """Return the `Admin` of each partition, including partitions of earlier epochs.

        Most queues have no partitions.
        """
        if self._is_alone:
            return []
        names = read_map(self.client, self.name).names()
        return [Admin(self._queue_of(name), self._queue_of) for name in names if name != self.name]

    def collect(
        self, limit: int = 100, *, crash_limit: int = CRASH_LIMIT, now: int | None = None
    ) -> tuple[int, int]:
        """Promote due messages, recover expired locks, and remove done messages: at most `limit` of each.

        Return the numbers of message ids that remain in the list `mid-circle` and in the set `due`.
        """
        left = self.upkeep(limit, crash_limit=crash_limit, now=now)
        return left.circle, left.due

    def upkeep(
        self, limit: int = 100, *, crash_limit: int = CRASH_LIMIT, now: int | None = None
    ) -> Upkeep:
        """Run the same upkeep as `collect`; return details about the remaining work."""
        values = {"now": moment(now), "crash_limit": crash_limit, "limit": limit}
        return Upkeep(*self.scripts["collect"].run(values)[1:])

    def dead(self, offset: int = 0, limit: int = 100, *, mid: str = "") -> list[DeadMessage]:
        """Return a page of dead messages, newest first; for a partitioned queue, from all its partitions.

        A page has at most 1,000 messages and about 256 KiB, so it may have fewer than `limit`. The limit in bytes
        applies to each partition. In a damaged record, `attempts` is -1.

        Args:
            mid: Return only the newest dead message with this mid, or the message with this dead id.
        """
        _check_page(offset, limit)
        values: Values = {"mid": mid, "offset": offset, "limit": limit}
        own = _dead_page(self.scripts["dead"].run(values))
        if own and own[0].dead_id == mid:
            return own
        partitions = self.partitions()
        if not partitions:
            return own
        if not mid:
            return list(islice(self.iter_dead(offset), limit))
        messages = chain(own, *(place.dead(mid=mid) for place in partitions))
        return sorted(messages, key=_newest_first)[:1]

    def dead_call(self, mid: str) -> ScriptCall[list[DeadMessage]]:
        """Return a `dead` call for one mid, to send together with other calls."""
        script = self.scripts["dead"]
        args = script.script.order({"mid": mid, "offset": 0, "limit": 1})
        return ScriptCall(script.script, script.keys, args, _dead_page)

    def iter_dead(self, offset: int = 0) -> Iterator[DeadMessage]:
        """Yield all dead messages after `offset`, newest first, page by page.

        If the set changes between two pages, a message may be yielded twice or missed.
        """
        each = [place._iter_own_dead() for place in self.places()]
        if len(each) == 1:
            return self._iter_own_dead(offset)
        return islice(merge(*each, key=_newest_first), offset, None)

    def _iter_own_dead(self, offset: int = 0) -> Iterator[DeadMessage]:
        script = self.scripts["dead"]
        while page := _dead_page(script.run({"mid": "", "offset": offset, "limit": SHORT_PAGE})):
            yield from page
            offset += len(page)

    def iter_entries(self, place: Place, offset: int = 0) -> Iterator[Entry]:
        """Yield all messages in one place, page by page. Start at `offset` in the queue and in each partition."""
        for queue in self.places():
            following: int | None = offset
            while following is not None:
                page = queue.content(place, following, SHORT_PAGE)
                yield from page.entries
                following = page.next_offset

    def revive(
        self, *dead_ids: str, caller: Caller | None = None, now: int | None = None
    ) -> list[str]:
        """Enqueue dead messages again as new messages.

        To be able to undo this, or to spread the starts over time, use `Bin.revive` instead. If the queue's partitions
        have changed, the messages go to the current partitions. Return an outcome for each id:

        - `revived`.
        - `exists`: its mid is in use.
        - `nil`: there is no such dead message.
        - `damaged`: its record can't be read.
        - `full`: its key has the maximum number of waiting messages.
        """
        words: list[str] = []
        for first in range(0, len(dead_ids), PER_CALL):
            some = dead_ids[first : first + PER_CALL]
            rest = [part for id_ in some for part in (id_, "")]
            values = {"op": "", "life_ms": ""}
            told = [*map(text_of, self._call("revive", caller, now, rest, values))]
            if SEALED in told:
                told = self.revive_moved(some, told)
            words += told
        if "nil" in words:
            for place in self.partitions():
                words = instead_of("nil", words, dead_ids, place.revive)
        return words

    def revive_moved(
        self, dead_ids: Sequence[str], words: list[str], at: Sequence[int | None] = ()
    ) -> list[str]:
        """Move dead messages of a sealed queue to the current partitions, and enqueue them there.

        Args:
            words: Outcome of each message so far. The returned list has a new outcome instead of each 'sealed'.
            at: Each message's earliest start in epoch ms; None means immediately.
        """
        base = self._queue_of(base_of(self.name))
        starts = dict(zip(dead_ids, at, strict=True)) if at else {}

        def revive(*ids: str) -> list[str]:
            told = [
                revive_moved(self.client, self.prefix, base, id_, starts.get(id_)) for id_ in ids
            ]
            revived = [id_ for id_, word in zip(ids, told, strict=True) if word == "revived"]
            if revived:
                self.scripts["purge"].run({}, revived)
            return told

        return instead_of(SEALED, words, dead_ids, revive)

    def bin(self, operation: str, keep: Duration = HOUR_S) -> Bin:
        """Return the bin that stores the messages removed by an operation.

        The bin expires when no message was added to it for the duration `keep`.
        """
        return Bin(self.name, self.client, operation, keep)

    def run_now(
        self, *mids: str, caller: Caller | None = None, now: int | None = None
    ) -> list[Rescheduled]:
        """Let delayed messages run immediately. To undo this, pass the returned former times to `reschedule`."""
        return self.reschedule([(mid, ANY, None) for mid in mids], caller=caller, now=now)

    def reschedule(
        self,
        wanted: Sequence[tuple[str, str, int | None]],
        *,
        caller: Caller | None = None,
        now: int | None = None,
    ) -> list[Rescheduled]:
        """Set the earliest start of waiting messages.

        Args:
            wanted: Each message's mid, generation, and earliest start in epoch ms; None as the start means immediately.
                The generation is '' until an attempt has ended; ANY matches any generation.
        """
        done: list[Rescheduled] = []
        for first in range(0, len(wanted), PER_CALL):
            rows = wanted[first : first + PER_CALL]
            rest = [
                part
                for mid, generation, at in rows
                for part in (checked_mid(mid), generation, "" if at is None else at)
            ]
            reply = self._call("reschedule", caller, now, rest)
            done += [
                Rescheduled(row[0], text_of(word), _number(former) if former else None)
                for row, word, former in zip(rows, reply[::2], reply[1::2], strict=True)
            ]
        return done

    def purge(self, *dead_ids: str) -> int:
        """Delete dead messages; return how many were deleted."""
        words: list[str] = []
        for first in range(0, len(dead_ids), PER_CALL):
            some = dead_ids[first : first + PER_CALL]
            words += map(text_of, self.scripts["purge"].run({}, some))
        npurged = words.count("purged")
        if npurged < len(dead_ids):
            left = [id_ for id_, word in zip(dead_ids, words, strict=True) if word == "nil"]
            npurged += sum(place.purge(*left) for place in self.partitions())
        return npurged

    def clear(self, *, caller: Caller | None = None, now: int | None = None) -> int:
        """Delete all messages except dead messages; return their number. Running attempts can't finish after that.

        Raises ConfigError while the queue has unfinished messages of flows: their flows would wait for them forever.
        """
        total = 0
        for place in self.places():
            word, count = place._call("clear", caller, now)
            if word == b"members":
                raise ConfigError(
                    f"flows would wait forever for {counted(int(count), 'unfinished message')} of queue {self.name}; "
                    "cancel these flows first"
                )
            total += int(count)
        return total

    def flow_backlog(self) -> OutboxBacklog:
        """Return how many entries wait in the outbox for flows, and the time of the oldest entry."""
        where = keys.key(self.prefix, "flow_outbox")
        first = self.client.command("XRANGE", where, "-", "+", "COUNT", 1)
        oldest = int(first[0][0].partition(b"-")[0]) if first else 0
        return OutboxBacklog(int(self.client.command("XLEN", where)), oldest)

    def _call(
        self,
        verb: str,
        caller: Caller | None,
        now: int | None,
        rest: Sequence[Argument] = (),
        values: Mapping[str, Argument] = NOTHING,
    ) -> Any:
        own = caller or self._callers.take()
        reply = self.scripts[verb].call(own, {"now": moment(now), **values}, rest)
        if caller is None:
            # Not reached after an error: the call may still arrive, so its caller isn't used again.
            self._callers.give_back(own)
        return reply

    def log(self, mid: str, attempt: int) -> bytes | None:
        """Return the last 64 KiB of an attempt's log; None if there is no log. Only jobs with keep_logs keep logs."""
        reply: bytes = self.client.command(*self.log_words(mid, attempt))
        return reply or None

    def log_words(self, mid: str, attempt: int) -> tuple[Argument, ...]:
        """Return the command that reads an attempt's log, for use in a pipeline. Without a log, the reply is empty."""
        where = keys.attempt_log(self.prefix, checked_mid(mid), attempt)
        return "GETRANGE", where, 0, MAX_LOG_LENGTH - 1

    def retention(self, most: int | None = None, age: Duration | None = None) -> DeadLimits:
        """Set how many dead messages the queue keeps, and for how long. Return the limits in force.

        Omitted limits stay unchanged. Whenever a message is dead-lettered, and during upkeep, the queue deletes a few
        of the oldest dead messages beyond a limit.
        """
        if most is not None and not 1 <= most <= MAX_DEAD:
            raise ConfigError(
                f"most={most!r} is out of range; it must be between 1 and {MAX_DEAD:,}"
            )
        age_ms = None if age is None else round(duration_s(age) * 1000)
        if age_ms is not None and not 1 <= age_ms <= MAX_MS:
            raise ConfigError(
                f"age={age!r} is out of range; it must be between a millisecond and 100 years"
            )
        values: Values = {"most": most or "", "age_ms": age_ms or "", "on_dead": ""}
        for place in self.partitions() if most or age_ms else ():
            place.scripts["retention"].run(values)
        reply = self.scripts["retention"].run(values)
        limits = [_number(word or b"") for word in reply]
        kept = DeadLimits()
        return DeadLimits(
            kept.most if limits[0] is None else limits[0],
            kept.age_s if limits[1] is None else limits[1] / 1000,
            limits[2] or 0,
        )

    def call_on_dead(self) -> None:
        """Make the queue enqueue a call to the job's on_dead function whenever a message is dead-lettered."""
        self.scripts["retention"].run({"most": "", "age_ms": "", "on_dead": "1"})

    def fsck(self) -> list[Violation]:
        """Check the queue's invariants, and return the violations without repairing them.

        This is safe while the queue is in use. `jobq check fsck` also checks the queue's partitions.
        """
        return fsck(self)

    def schedules(self, log: int = 0, *, now: int | None = None) -> Schedules:
        """Return all schedules of the queue, and the latest `log` ticks, at most 1,000."""
        return _schedules(self.scripts["schedules"].run({"now": moment(now), "limit": log}))

    def schedules_call(self, log: int = 0) -> ScriptCall[Schedules]:
        """Return a `schedules` call to send together with other calls."""
        script = self.scripts["schedules"]
        args = script.script.order({"now": moment(None), "limit": log})
        return ScriptCall(script.script, script.keys, args, _schedules)

    def schedule(
        self, verb: str, name: str, definition: str = "", *, now: int | None = None
    ) -> tuple[str, str]:
        """Declare, add, pause, resume or remove a schedule.

        Return an outcome and a detail. The detail of 'declared' and 'added' is the last tick. 'taken' means that a
        worker's code declares the schedule; the detail is the declared definition. The outcomes 'paused', 'resumed',
        'removed', 'same', 'unknown' and 'full' have no detail.
        """
        values = {"now": moment(now), "verb": verb, "name": name, "definition": definition}
        word, *more = map(text_of, self.scripts["schedule"].run(values))
        return word, more[0] if more else ""

    def tick(self, values: Values) -> Ticked:
        """Enqueue a tick's call at most once, whatever the number of callers.

        Args:
            values: See `tick_values`.

        Raises SealedError if the queue is partitioned; see `jobq.queue.partition_ticks`.
        """
        script = self.scripts["tick"]
        done = script.run(values)
        while done[0] == REMEMBERS:
            # Only the server knows which run the tick cancels.
            key = keys.result(self.prefix, text_of(done[1]))
            done = script.run(values, extra_keys=(key,))
        if done[0] == b"sealed":
            raise SealedError(
                f"queue {self.name!r} is sealed; its schedules enqueue to its partitions"
            )
        return Ticked._make(map(text_of, done))

    def events_level(self, level: str = "") -> str:
        """Set how much the event stream records: 'off', 'attempts' or 'all'. Return the level; '' only reads it."""
        if level and level not in LEVELS:
            raise ConfigError(f"event level {level!r} is unknown; use one of {', '.join(LEVELS)}")
        return text_of(self._event_settings({"wanted": level, "length": ""}, bool(level))[0])

    def _event_settings(self, values: Values, changes: bool) -> Sequence[bytes]:
        for place in self.partitions() if changes else ():
            place.scripts["set_event_level"].run(values)
        kept: Sequence[bytes] = self.scripts["set_event_level"].run(values)
        return kept

    def events_maxlen(self, length: int | None = None) -> int:
        """Set the approximate number of events that the stream keeps, and return it; None only reads it.

        Surplus events are removed when new events are added.
        """
        least, most = MAXLENS
        if length is not None and not least <= length <= most:
            raise ConfigError(
                f"maxlen={length!r} is out of range; it must be between {least:,} and {most:,}"
            )
        values: Values = {"wanted": "", "length": "" if length is None else length}
        kept = self._event_settings(values, length is not None)[1]
        number = _number(kept)
        if number is None:
            raise ScriptError(
                f"queue {self.name!r}: the maximum length of the event stream is {text_of(kept)!r}, which is not a "
                f"number; set the length with jobq events maxlen"
            )
        return number


def _check_page(offset: int, limit: int) -> None:
    if not 0 <= offset < 2**53 or not 1 <= limit <= PAGE:
        raise ConfigError(
            f"offset={offset!r}, limit={limit!r} can't be used; offset must be at least 0, limit "
            f"between 1 and {PAGE:,}"
        )


def _tick_state(text: str) -> TickState:
    last, paused, mid = (*text.split(",", 2), "", "")[:3]
    return TickState(_number(last.encode()) or 0, paused == "p", mid)


def _logged_tick(entry: bytes) -> LoggedTick | None:
    """Parse an entry of the tick log; return None if another program wrote it."""
    parts = text_of(entry).split("\x1f")
    numbers = [_number(part.encode()) for part in (parts[1:3] + parts[4:5])]
    if len(parts) != 6 or None in numbers:
        return None
    tick_ms, late_ms, missed = (number or 0 for number in numbers)
    return LoggedTick(parts[0], tick_ms, late_ms, parts[3], missed, parts[5])


def _page(place: Place, offset: int, reply: Sequence[Any]) -> Page:
    looked_at, *items = reply
    entries = [Entry._make([text_of(row[0]), text_of(row[1]), *row[2:]]) for row in _rows(items, 7)]
    if place == "lines":
        return Page(entries, looked_at or None)
    return Page(entries, offset + looked_at if looked_at else None)


def _newest_first(dead: DeadMessage) -> int:
    return -dead.died_at


def _dead_page(reply: Sequence[Any]) -> list[DeadMessage]:
    return [_dead_message(row) for row in _rows(reply, 6)]


def _dead_message(row: Sequence[bytes]) -> DeadMessage:
    dead_id, numbers = text_of(row[0]), [_number(word) for word in row[1:4]]
    died_at, attempts, ncrashes = (0 if number is None else number for number in numbers)
    if None in numbers:
        attempts = -1
    return DeadMessage(
        dead_id, dead_id.rpartition("#")[0], died_at, attempts, ncrashes, text_of(row[4]), row[5]
    )


def _number(word: bytes) -> int | None:
    """Parse a number that a script wrote; return None for any other text."""
    try:
        number = float(word)
    except ValueError:
        return None
    return int(number) if abs(number) <= MAX_NUMBER else None


def _rows(items: Sequence[object], width: int) -> list[tuple]:  # type: ignore[type-arg]
    return list(zip(*(iter(items),) * width, strict=True))


def _sample(reply: list[Any]) -> Sample:
    *most, unknowns, off, sealed = reply
    fence, added, mid, attempts, content, entries, since, refused, refused_at = most[-9:]
    *numbers, pause, quarantined, nkeys = most[:-9]
    head = WaitingHead(text_of(mid), attempts, content) if mid else None
    served = int(not sealed or bool(numbers[0] or entries))  # see Left.is_drained
    return Sample(
        Counts._make([*numbers, bool(pause), quarantined, nkeys, served, served if pause else 0]),
        int(fence) % FENCES_PER_EPOCH, int(added), head,
        entries, int(since), int(refused), int(refused_at), int(unknowns), pause if pause > 1 else 0, bool(off),
        bool(sealed),
    )  # fmt: skip


def _key_page(reply: list[Any]) -> KeyPage:
    following, *items = reply
    return KeyPage(key_rows(items), int(following) or None)


def _schedules(reply: list[Any]) -> Schedules:
    definitions, states = (dict(_rows([*map(text_of, part)], 2)) for part in reply[1:3])
    return Schedules(
        int(reply[0]), definitions, {name: _tick_state(text) for name, text in states.items()},
        [tick for tick in map(_logged_tick, reply[3]) if tick],
    )  # fmt: skip


def tick_values(
    name: str,
    tick_ms: int,
    after_ms: int,
    mid: str,
    content: bytes,
    *,
    key: str | None = None,
    ordered: bool = False,
    **options: Argument,
) -> Values:
    """Return the arguments of the script `tick`.

    Args:
        after_ms: The last tick that the caller knows.
        key, ordered: See `Queue.enqueue_many`.
        options: due_ms, overlap, missed, lock_ms, dedupe_ms and now; see `lua/queue/tick.lua`.
    """
    keyed = "" if key is None else "ordered" if ordered else "key"
    return {
        "now": "", "name": name, "tick_ms": tick_ms, "after_ms": after_ms, "due_ms": tick_ms, "overlap": "skip",
        "missed": 0, "mid": mid, "content": content, "lock_ms": "", "dedupe_ms": "", "keyed": keyed,
        "key": "" if key is None else checked_key(key), **options,
    }  # fmt: skip
