"""Texts on pages about a queue or the whole system: a state, a sentence with figures, and a remedy."""

from __future__ import annotations

import math
import shlex
from typing import NamedTuple

from jobq.durations import counted
from jobq.observe.why import pause_words, worker_command
from jobq.web import formats
from jobq.web.sampler import Snapshot
from jobq.web.trouble import QueueFigures

#: State -> the style of its glyph, and its word.
_WORDS = {
    "damaged": ("dead", "damaged"),
    "paused": ("paused", "paused"),
    "no_worker": ("dead", "no worker"),
    "falling_behind": ("retry", "falling behind"),
    "late": ("retry", "late"),
    "failing": ("dead", "failing"),
    "working": ("running", "working"),
    "idle": ("done", "idle"),
}


class StateLabel(NamedTuple):
    """A state for the template macro `ui.state`."""

    style: str
    word: str


class Headline(NamedTuple):
    """The headline of the overview page.

    Attributes:
        bad: Whether the headline reports a problem.
    """

    text: str
    bad: bool


def state_label(figures: QueueFigures) -> StateLabel:
    """Return the word for a queue's state."""
    style, word = _WORDS[figures.state]
    return StateLabel(style, _paused(figures) if word == "paused" else word)


def _paused(figures: QueueFigures) -> str:
    return pause_words(0, figures.paused_partitions, figures.served_partitions)


def sentence(figures: QueueFigures) -> str:
    """Return a queue's problem, with figures; '' if there is none."""
    waited = (
        ""
        if not figures.oldest_ms or figures.oldest_ms < 1000
        else formats.duration(figures.oldest_ms / 1000)
    )
    oldest = (
        f"the next message has waited {'at least ' * figures.at_least}{waited}" if waited else ""
    )
    ready = f"{formats.number(figures.ready)} ready"
    if figures.state == "damaged":
        return f"Unreadable: {figures.broken}"
    if figures.state == "paused":
        left = (figures.pause_ends - figures.at_ms) / 1000
        span = f" for another {formats.duration(left)}" if left > 0 else ""
        paused = f"{_paused(figures).capitalize()}{span}"
        of = "their messages" if figures.partly_paused else "messages"
        return f"{paused}: {of} are not started. {ready}{', ' * bool(oldest)}{oldest}."
    if figures.state == "no_worker":
        return f"No worker serves this queue. {ready}, {oldest or 'nothing runs'}."
    if figures.state == "falling_behind":
        return (
            f"Messages arrive faster than they are processed. {ready}, {oldest}{'; ' * bool(oldest)}"
            f"{emptying(figures)}."
        )
    if figures.state == "late":
        return f"{oldest[:1].upper()}{oldest[1:]}; {ready}, {emptying(figures)}."
    if figures.state == "failing":
        recent = figures.recent
        failed, total = recent.failed + recent.dead, recent.done + recent.failed + recent.dead
        return f"{formats.number(failed)} of {formats.number(total)} attempts failed in the last 15 minutes."
    return ""


def emptying(figures: QueueFigures) -> str:
    """Describe when a queue will be empty at its current rate."""
    in_s = figures.empty_in_s
    if in_s is None:
        return "too early to say when the queue will be empty"
    return (
        "never empty at this rate"
        if math.isinf(in_s)
        else f"empty in about {formats.duration(in_s)}"
    )


def emptied(figures: QueueFigures) -> str:
    """Format the time until the queue is empty, for a table cell."""
    in_s = figures.empty_in_s
    if not figures.ready:
        return ""
    return (
        formats.UNKNOWN if in_s is None else "never" if math.isinf(in_s) else formats.duration(in_s)
    )


def remedy(figures: QueueFigures) -> str:
    """Return a command that solves the queue's problem, or ''."""
    name = shlex.quote(figures.queue)
    return {
        "damaged": "jobq check fsck",
        "paused": f"jobq resume {name}",
        "no_worker": worker_command([figures.queue], figures.job),
        "falling_behind": worker_command([figures.queue], figures.job),
    }.get(figures.state, "")


def headline(snapshot: Snapshot, nfindings: int) -> Headline:
    """Return the headline of the overview page.

    Args:
        nfindings: Number of findings on the page, including any finding that the headline repeats.
    """
    count, bad = len(snapshot.queues), snapshot.in_trouble
    words = counted(count, "queue")
    if snapshot.causes:
        more = nfindings - 1
        rest = f", and {counted(more, 'more finding')}" if more > 0 else ""
        return Headline(snapshot.causes[0].headline + rest, True)
    if not bad:
        return Headline("The queue keeps up" if count == 1 else f"All {words} keep up", False)
    behind = [queue for queue in bad if queue.state in ("falling_behind", "no_worker", "late")]
    damaged = sum(1 for queue in bad if queue.broken)
    unread = f"{damaged:,} can't be read" if damaged else ""
    if behind:
        verb = "is" if len(behind) == 1 else "are"
        return Headline(
            f"{len(behind):,} of {words} {verb} falling behind" + (unread and f", {unread}"), True
        )
    need = "needs" if len(bad) == 1 else "need"
    return Headline(f"{len(bad):,} of {words} {need} attention", True)
