"""Read ranges of a topic by index, without a group.

A page comes by XRANGE straight from the log. It is whole when its indexes follow one another from the one
expected; otherwise a script reads it, which handles compaction and retention. Where the topic has messages so
long that a page by XRANGE could hold the server up, each page comes from the script, which counts bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from jobq.errors import ConfigError, OutOfRangeError
from jobq.topics.calls import TopicCalls
from jobq.topics.messages import LONGEST, Position, TopicMessage, decoded, moment_of, position_of

#: The first page; the following are as large as PAGE_BYTES allows.
FIRST_PAGE = 64
LONGEST_PAGE = 5_000
PAGE_BYTES = 256 * 1024
#: Most that one XRANGE may bring.
MOST_BYTES = 4 * 1024 * 1024


def read(
    binding: TopicCalls, start: Position, end: Position | None, out_of_range: str
) -> Iterator[TopicMessage]:
    """What Topic.read says."""
    if out_of_range not in ("error", "earliest"):
        raise ConfigError(f"out_of_range={out_of_range!r} is unknown; take error or earliest")
    where, value = position_of(start).values()
    first, last, _, _ = binding.run("read", {"from": 1, "upto": 0, "count": 1})
    following = first if where == "earliest" else last + 1
    if where == "time":
        following = binding.run("find", {"time": value})[0]
    elif where == "index":
        following = int(value)
    upto = _end(binding, end, last)
    return _messages(binding, following, upto, out_of_range == "error")


def _end(binding: TopicCalls, end: Position | None, last: int) -> int:
    if isinstance(end, datetime):
        return int(binding.run("find", {"time": moment_of(end)})[0]) - 1
    if end is None or end == "latest":
        return last
    if isinstance(end, int) and not isinstance(end, bool):
        return end
    raise ConfigError(f"end={end!r} is not an end of a range; take an index, a datetime or None")


def _messages(
    binding: TopicCalls, following: int, upto: int, strict: bool
) -> Iterator[TopicMessage]:
    for page in pages(binding, following, upto, strict):
        yield from map(decoded, page)


def pages(binding: TopicCalls, following: int, upto: int, strict: bool) -> Iterator[list[Any]]:
    """Entries as XRANGE gives them, from one index to another, about 256 KiB at a time.

    strict: raises OutOfRangeError when retention has dropped some; else goes on with the first that is there.
    """
    count, longest = FIRST_PAGE, _longest(binding)
    while following <= upto:
        plain = count * longest <= MOST_BYTES
        page, following = _page(binding, following, upto, count, strict, plain)
        if page:
            yield page
            size = sum(len(fields[1]) for _, fields in page) // len(page)
            count = max(1, min(LONGEST_PAGE, PAGE_BYTES // (size + 64)))


def _longest(binding: TopicCalls) -> int:
    """Bytes of the topic's longest message; as many as one may have where that isn't known."""
    found = binding.client.command("HGET", binding.key("meta"), "longest")
    return int(found) if found and found.isdigit() and len(found) < 10 else LONGEST


def _page(
    binding: TopicCalls, following: int, upto: int, count: int, strict: bool, plain: bool
) -> tuple[list[Any], int]:
    """Entries, and the index after the last of them; `upto` + 1 when there are no more."""
    page: list[Any] = []
    if plain and following > 0:
        page = binding.client.command("XRANGE", binding.log_key, following, upto, "COUNT", count)
    if page and _index(page[0]) == following and _index(page[-1]) == following + len(page) - 1:
        return page, following + len(page)
    values = {"from": following, "upto": upto, "count": min(count, 1_000)}
    first, last, _, page = binding.run("read", values)
    if strict and following < first:
        raise OutOfRangeError(
            f"topic {binding.name!r} has no {following} any more, it begins at {first}; read from there, or "
            "with out_of_range='earliest'",
            following, first, last,
        )  # fmt: skip
    return page, _index(page[-1]) + 1 if page else upto + 1


def _index(entry: Any) -> int:
    return int(entry[0].partition(b"-")[0])
