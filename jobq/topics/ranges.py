"""Read ranges of a topic by index, without a group.

XRANGE reads a page directly from the log. The page is complete if its indexes are consecutive and begin with the
expected index. Otherwise, a script that handles compaction and retention reads the page. If a topic's messages are so
long that XRANGE could block the server, the script reads all pages, because it limits the bytes per page.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from jobq.client.steps import Steps
from jobq.errors import ConfigError, OutOfRangeError
from jobq.topics.calls import TopicCalls
from jobq.topics.messages import MAX_LENGTH, Position, TopicMessage, decoded, moment_of, position_of

#: Number of entries in the first page. Later pages are as large as PAGE_BYTES allows.
FIRST_PAGE = 64
MAX_PAGE_LENGTH = 5_000
PAGE_BYTES = 256 * 1024
#: Maximum number of bytes per XRANGE.
MAX_BYTES = 4 * 1024 * 1024


class RangeReader:
    """Reads a range of indexes, about 256 KiB at a time.

    Attributes:
        strict: True to raise OutOfRangeError if retention has dropped messages of the range; False to continue with the
            first existing message.
    """

    def __init__(self, binding: TopicCalls, following: int, upto: int, strict: bool) -> None:
        self._binding, self._following, self._upto, self._strict = binding, following, upto, strict
        self._count, self._longest = FIRST_PAGE, 0

    def next(self) -> Steps[list[Any]]:
        """Return the next entries in the format of XRANGE, or [] at the end of the range."""
        if not self._longest:
            self._longest = yield from self._longest_message()
        while self._following <= self._upto:
            page: list[Any] = yield from self._page()
            if page:
                size = sum(len(fields[1]) for _, fields in page) // len(page)
                self._count = max(1, min(MAX_PAGE_LENGTH, PAGE_BYTES // (size + 64)))
                return page
        return []

    def _longest_message(self) -> Steps[int]:
        reply = yield from self._binding.command_steps("HGET", self._binding.key("meta"), "longest")
        known = reply and reply.isdigit() and len(reply) < 10
        return max(1, int(reply)) if known else MAX_LENGTH

    def _page(self) -> Steps[list[Any]]:
        binding, following, upto = self._binding, self._following, self._upto
        page: list[Any] = []
        if following > 0 and self._count * self._longest <= MAX_BYTES:
            page = yield from binding.command_steps(
                "XRANGE", binding.log_key, following, upto, "COUNT", self._count
            )
        if page and _index(page[0]) == following and _index(page[-1]) == following + len(page) - 1:
            self._following += len(page)
            return page
        values = {"from": following, "upto": upto, "count": min(self._count, 1_000)}
        first, last, _, page = yield from binding.run_steps("read", values)
        if self._strict and following < first:
            raise OutOfRangeError(
                f"topic {binding.name!r} no longer has {following}, and begins at {first}; read from there, or "
                "with out_of_range='earliest'",
                following, first, last,
            )  # fmt: skip
        self._following = _index(page[-1]) + 1 if page else upto + 1
        return page


def opened(
    binding: TopicCalls, start: Position, end: Position | None, out_of_range: str
) -> Steps[RangeReader]:
    """Return a RangeReader for the arguments of `Topic.read`."""
    if out_of_range not in ("error", "earliest"):
        raise ConfigError(f"out_of_range={out_of_range!r} is unknown; use error or earliest")
    where, value = position_of(start).values()
    first, last, _, _ = yield from binding.run_steps("read", {"from": 1, "upto": 0, "count": 1})
    following = first if where == "earliest" else last + 1
    if where == "time":
        following = (yield from binding.run_steps("find", {"time": value}))[0]
    elif where == "index":
        following = int(value)
    upto = yield from _end(binding, end, last)
    return RangeReader(binding, following, upto, out_of_range == "error")


def _end(binding: TopicCalls, end: Position | None, last: int) -> Steps[int]:
    if isinstance(end, datetime):
        reply = yield from binding.run_steps("find", {"time": moment_of(end)})
        return int(reply[0]) - 1
    if end is None or end == "latest":
        return last
    if isinstance(end, int) and not isinstance(end, bool):
        return end
    raise ConfigError(f"end={end!r} is not an end of a range; use an index, a datetime or None")


def messages_of(reading: RangeReader, count: int) -> Steps[list[TopicMessage]]:
    """Return the first messages of a range, up to `count`."""
    messages: list[TopicMessage] = []
    while len(messages) < count and (page := (yield from reading.next())):
        messages += map(decoded, page[: count - len(messages)])
    return messages


def read(
    binding: TopicCalls, start: Position, end: Position | None, out_of_range: str
) -> Iterator[TopicMessage]:
    """Yield the messages of a range; see `Topic.read`."""
    reading = binding.perform(opened(binding, start, end, out_of_range))
    return (decoded(entry) for page in _pages(reading, binding) for entry in page)


def pages(binding: TopicCalls, following: int, upto: int, strict: bool) -> Iterator[list[Any]]:
    """Yield entries from index `following` to `upto`, page by page."""
    return _pages(RangeReader(binding, following, upto, strict), binding)


def _pages(reading: RangeReader, binding: TopicCalls) -> Iterator[list[Any]]:
    while page := binding.perform(reading.next()):
        yield page


def _index(entry: Any) -> int:
    return int(entry[0].partition(b"-")[0])
