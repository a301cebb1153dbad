"""What needs a look: each with a sentence, and the page that shows more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from jobq.web import formats
from jobq.web.sampler import Snapshot
from jobq.web.site import Site
from jobq.web.words import sentence, word_of

#: Most of one kind on the first page.
MOST = 8


class PageFinding(NamedTuple):
    """One line. style, word: the state. name: what it is about. route, values: the page with more. since: epoch ms."""

    style: str
    word: str
    name: str
    text: str
    route: str = ""
    values: Mapping[str, str] = {}
    since: float | None = None


Finder = Callable[[Site, Snapshot], list[PageFinding]]
#: Modules of pages add what they find when they are imported.
FINDERS: list[Finder] = []


def finder(find: Finder) -> Finder:
    """Declare a function that finds what needs a look. It costs at most one round trip."""
    FINDERS.append(find)
    return find


def findings(site: Site, snapshot: Snapshot) -> list[PageFinding]:
    """Return everything that needs a look, queues first."""
    return [
        *_queues(snapshot), *_workers(snapshot),
        *(one for find in FINDERS for one in find(site, snapshot)[:MOST]),
    ]  # fmt: skip


def _queues(snapshot: Snapshot) -> list[PageFinding]:
    found = snapshot.in_trouble
    shown = [
        PageFinding(
            *word_of(one), one.queue, sentence(one), "queue", {"queue": one.queue},
            one.growth.since_s * 1000
            if one.state == "falling_behind" and one.growth.since_s is not None
            else None,
        )
        for one in found[:MOST]
    ]  # fmt: skip
    if len(found) > MOST:
        shown.append(
            PageFinding("unknown", "more", f"{len(found) - MOST:,} more queues", "", "queues")
        )
    return shown


def _workers(snapshot: Snapshot) -> list[PageFinding]:
    lost = sorted(snapshot.lost_workers, key=lambda one: -one.seen_at)
    shown = [
        PageFinding(
            "dead", "lost", one.name,
            f"It was last seen {formats.duration((snapshot.at_ms - one.seen_at) / 1000)} ago. "
            "Other workers take over what it ran.",
            "worker", {"worker": one.name},
        )
        for one in lost[:MOST]
    ]  # fmt: skip
    if len(lost) > MOST:
        shown.append(
            PageFinding("unknown", "more", f"{len(lost) - MOST:,} more workers", "", "workers")
        )
    return shown
