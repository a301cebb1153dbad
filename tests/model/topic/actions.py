"""Possible next steps of a topic, and the required answer of each call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.model.expect import need
from tests.model.machine import Machine
from tests.model.topic.world import Call, Hold, World

Action = tuple[Any, ...]
#: token, first, last, deliveries, lease_at
Row = tuple[str, int, int, int, int]


def moves(m: Machine, w: World) -> Iterator[Action]:
    """Everything that may happen next."""
    left = w.left
    if left.get("append"):
        for shape in w.scope.shapes:
            yield "append", shape
    for reader in w.scope.readers:
        yield from _moves_of(w, reader)
    if left.get("seek"):
        yield ("seek", "earliest")
        yield ("seek", "latest")
    for kind in ("trim", "pause"):
        if left.get(kind):
            yield (kind,)
    phase = m.topic.numbers()[4]
    if phase or left.get("compaction"):
        yield ("compact", 0 if phase else 1)
    if m.topic.next_lease(w.now):
        yield ("tick",)


def _moves_of(w: World, reader: str) -> Iterator[Action]:
    hold = w.holds.get(reader)
    if hold is None or w.scope.auto:
        for count in w.scope.counts:
            yield "poll", reader, count
    if hold is None:
        return
    if not w.scope.auto:
        yield "commit", reader, 0
        if w.scope.parts and len(hold.indexes) > 1:
            yield "commit", reader, 1
    if "release" in w.left:
        yield "extend", reader
        if w.left["release"]:
            yield "release", reader
    if w.left.get("forget"):
        yield "forget", reader


def call(m: Machine, w: World, script: str, caller: str, *args: str | int) -> tuple[Any, ...]:
    """The next numbered call of `caller`."""
    number = w.numbers[caller] = w.numbers.get(caller, 0) + 1
    reply = m.run(script, caller, w.now, caller, number, *args)
    w.calls[caller] = Call(script, number, args, reply)
    return reply


def append(m: Machine, w: World, shapes: str) -> None:
    w.spend("append")
    before, args = len(w.accepted), []
    for number, shape in enumerate(shapes.split(" "), before + 1):
        fields, key = shape.rstrip("0123456789"), shape[-1] if shape[-1].isdigit() else ""
        content = f"c{number}" if "m" in fields else ""
        args += [fields, *({"m": content, "k": key}[name] for name in fields)]
        w.accepted += ((content, key),)
    word, first, last, _ = call(m, w, "append", "P", "", *args)
    need(
        (word, first, last) == ("ok", before + 1, len(w.accepted)),
        f"T1 append after {before} gave {word} {first} to {last}",
    )


def poll(m: Machine, w: World, reader: str, count: int) -> None:
    before = stretches(m)
    settling = w.holds.pop(reader, None)
    token = f"{reader}.{w.numbers.get(reader, 0) + 1}.0"
    commit = settling.token if settling else ""
    reply = call(m, w, "poll", reader, "", token, count, w.scope.lease, commit)
    word, committed, first, last, deliveries, lease_at, _, _, _, entries = reply
    need(word == ("paused" if w.paused else "ok"), f"poll answered {word}")
    if settling:
        _settled(w, settling, committed, settling.indexes[-1])
    found = [_entry(row) for row in entries.values()] if entries else []
    free = available(m, w, before)
    need(found or not free or w.paused, f"T2 nothing handed out, and {free} are free")
    need(not (found and w.paused), "T2 handed out while paused")
    if found:
        w.tokens |= {token}
        _handed(w, found, free, deliveries)
        need(lease_at == w.now + w.scope.lease, f"T5 lease until now + {lease_at - w.now}")
        need(
            {i for i in free if first <= i <= last} == {i for i, _ in found},
            f"T3 {first} to {last} passes over messages: {free}",
        )
        need(len(found) <= count, f"T3 {len(found)} messages, asked for {count}")
        w.holds[reader] = Hold(token, tuple(i for i, _ in found))
    _gone(m, w, before, commit, first)


def _gone(m: Machine, w: World, before: list[Row], commit: str, first: int) -> None:
    """Stretches end by a commit, by another hand-out once their lease is over, or when all of it was dropped."""
    after, there = {row[0] for row in stretches(m)}, visible(m)
    for token, low, high, _, lease_at in before:
        if token not in after and token != commit:
            empty = not any(low <= i <= high for i in there)
            need(
                lease_at <= w.now and (low == first or empty),
                f"T2 {low} to {high} was taken from {token}",
            )
            w.tokens -= {token}


def _handed(w: World, found: list[tuple[int, str]], free: list[int], deliveries: int) -> None:
    for index, content in found:
        need(index in free, f"T2 {index} handed out, and only {free} are free")
        need(content == w.accepted[index - 1][0], f"T1 {index} is {content}")
        w.deliveries[index] = w.deliveries.get(index, 0) + 1
        need(deliveries == w.deliveries[index], f"T6 {index} by delivery {deliveries}")


def _settled(w: World, hold: Hold, word: str, through: int) -> None:
    alive = hold.token in w.tokens
    need(
        (word == "ok") == alive,
        f"T4 commit of {hold} answered {word}, its stretch is {'its' * alive}",
    )
    if alive:
        w.settled |= {i for i in hold.indexes if i <= through}
        if through >= hold.indexes[-1]:
            w.tokens -= {hold.token}


def commit(m: Machine, w: World, reader: str, part: int) -> None:
    hold = w.holds[reader]
    through = hold.indexes[0] if part else ""
    word, _ = call(m, w, "commit", reader, hold.token, through)
    _settled(w, hold, word, hold.indexes[0] if part else hold.indexes[-1])
    if part:
        w.holds[reader] = Hold(hold.token, hold.indexes[1:])
    else:
        del w.holds[reader]
    need(word == "ok" or not m.writes(), "T4 a stale commit changed something")


def extend(m: Machine, w: World, reader: str, lease: int | None = None) -> None:
    hold = w.holds[reader]
    (word,) = m.run(
        "extend", reader, w.now, "", hold.token, w.scope.lease if lease is None else lease
    )
    need((word == "ok") == (hold.token in w.tokens), f"T4 extend of {hold} answered {word}")
    need(word == "ok" or not m.writes(), "T4 a stale extend changed something")


def release(m: Machine, w: World, reader: str) -> None:
    w.spend("release")
    extend(m, w, reader, 0)
    del w.holds[reader]


def forget(m: Machine, w: World, reader: str) -> None:
    w.spend("forget")
    del w.holds[reader]


def seek(m: Machine, w: World, place: str) -> None:
    w.spend("seek")
    word, position = m.run("seek", "", w.now, "", place, "")
    expected = w.first - 1 if place == "earliest" else len(w.accepted)
    need((word, position) == ("ok", expected), f"seek {place} gave {word} {position}")
    w.settled = frozenset(range(1, position + 1))
    w.deliveries, w.tokens = {}, frozenset()


def trim(m: Machine, w: World) -> None:
    w.spend("trim")
    first, _ = m.run("trim", "", w.now, "", w.first + 1)
    w.first = min(w.first + 1, len(w.accepted) + 1)
    need(first == w.first, f"T10 trim left {first} as the first")
    w.settled |= set(range(1, w.first))


def pause(m: Machine, w: World) -> None:
    w.spend("pause")
    w.paused = not w.paused
    m.run("steer", "", w.now, int(w.paused), "")


def compact(m: Machine, w: World, begin: int) -> None:
    if begin:
        w.spend("compaction")
    m.run("compact", "", w.now, "", begin, 1)


def tick(m: Machine, w: World) -> None:
    w.now = m.topic.next_lease(w.now)


ACTIONS = {
    action.__name__: action
    for action in (append, poll, commit, extend, release, forget, seek, trim, pause, compact, tick)
}


def stretches(m: Machine) -> list[Row]:
    """Batches held by readers, by first index."""
    told = m.topic.stretches()
    rows = [] if told is None else [told] if isinstance(told, str) else list(told)
    need(not any(row.startswith("broken") for row in rows), f"T7 {rows}")
    split = [row.split(" ") for row in rows]
    return [(row[0], int(row[1]), int(row[2]), int(row[3]), int(row[4])) for row in split]


def _entry(row: Any) -> tuple[int, str]:
    fields = list(row[2].values())
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    return int(row[1].partition("-")[0]), found.get("m", "")


def visible(m: Machine) -> dict[int, str]:
    """Readable messages: index -> content."""
    _, _, _, entries = m.run("read", "", 0, 1, 1_000, 1_000)
    rows = [_entry(row) for row in entries.values()]
    need([i for i, _ in rows] == sorted({i for i, _ in rows}), f"T9 read gave {rows}")
    return dict(rows)


def available(m: Machine, w: World, before: list[Row]) -> list[int]:
    """Messages that may be handed out: readable, not settled, not under a live lease."""
    leased = {i for row in before if row[4] > w.now for i in range(row[1], row[2] + 1)}
    return [i for i in visible(m) if i not in w.settled and i not in leased]
