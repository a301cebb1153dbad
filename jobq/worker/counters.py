"""Counters of one worker process, in memory that survives the exit of the process.

Each page of counters has one writer: the supervisor, or a child and later its replacement. All processes may read the
page. All names of jobs and queues are fixed before the first fork, which limits the number of metric labels. Names
beyond MAX_JOBS and MAX_QUEUES, and names that occur only in messages, are counted as OTHER.

An outcome is counted once the server has accepted it. Until then, the page has a mark in the message's slot. From these
marks the supervisor counts outcomes that a dead child reported but didn't count.
"""

from __future__ import annotations

import mmap
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jobq.events import SEPARATOR
from jobq.jobs.crashes import CAUSES
from jobq.queue.types import Ending, RunFigures
from jobq.worker.shared_state import COUNT

MAX_QUEUES, MAX_JOBS = 1_000, 200
#: Stands for all names beyond that.
OTHER = "other"
OUTCOMES = ("done", "retry", "dead", "crashed", "snoozed", "expired", "aborted")
#: Upper bounds of the buckets, in seconds. One more bucket has the rest.
RUN_BUCKETS = (.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300)  # fmt: skip
WAIT_BUCKETS = (*RUN_BUCKETS, 900, 3600)
#: Counters of the whole process, in addition to the deaths of children by cause.
PLAIN = ("completions_rejected", "leases_lost", "server_errors")
_RUN_US = tuple(round(1e6 * bound) for bound in RUN_BUCKETS)
_WAIT_MS = tuple(round(1e3 * bound) for bound in WAIT_BUCKETS)
#: Words of a job: its buckets, and the sums of its run time and CPU time in us. Words of a queue: its buckets, and the
#: sum of its waits in ms.
_JOB, _QUEUE = len(_RUN_US) + 3, len(_WAIT_MS) + 2
#: Words of a series: its queue and job as a number, then a counter per outcome.
_SERIES, _MAX_SERIES = 1 + len(OUTCOMES), 4096
#: Counter for each outcome of an ending. A release doesn't end an attempt.
_OUTCOME_OF = {
    "done": 0, "retry": 1, "dead": 2, "crashed": 3, "snooze": 4, "unknown": 4, "hold": 4, "expired": 5,
}  # fmt: skip
_DEAD, _CRASHED, _ABORTED = 2, 3, 6
_POSTPONED = frozenset(("snooze", "unknown", "hold"))
_NO_MARKS = array("I", [0]) * COUNT
#: The slot of an ended message, the index of its counter, and its figures.
_Noted = tuple[int, int, RunFigures]


class Histogram(NamedTuple):
    """The number of values per bucket, and their sum.

    Counts aren't cumulative; the last count is for all larger values.
    """

    buckets: tuple[int, ...]
    sum: float


class Counted(NamedTuple):
    """All counts of a worker at one moment.

    Attributes:
        attempts: Number of attempts by queue, job and outcome.
        runs: Run times in seconds, by job.
        waits: Seconds between a message's enqueueing and its first attempt, by queue.
        cpu_s: CPU time in seconds, by job.
        deaths: Number of dead children, by cause.
        plain: All other counts, by their names in PLAIN.
    """

    attempts: dict[tuple[str, str, str], int]
    runs: dict[str, Histogram]
    waits: dict[str, Histogram]
    cpu_s: dict[str, float]
    deaths: dict[str, int]
    plain: dict[str, int]


class Labels(NamedTuple):
    """The names of the queues and jobs that have their own counters."""

    queues: tuple[str, ...]
    jobs: tuple[str, ...]

    @classmethod
    def of(cls, queues: Sequence[str], jobs: Sequence[str]) -> Labels:
        """Return labels for up to MAX_QUEUES queues and MAX_JOBS jobs. OTHER is appended to each of the two lists."""
        return cls((*queues[:MAX_QUEUES], OTHER), (*sorted(jobs)[:MAX_JOBS], OTHER))


class Counters:
    """Counts jobs and messages of one process, in memory that the worker's other processes can read."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        nplain = len(PLAIN) + len(CAUSES)
        self._runs = 1 + nplain
        self._waits = self._runs + _JOB * len(labels.jobs)
        self._series = self._waits + _QUEUE * len(labels.queues)
        self._most = min(_MAX_SERIES, len(labels.jobs) * len(labels.queues))
        words = self._series + _SERIES * self._most
        memory = memoryview(mmap.mmap(-1, 8 * words + 4 * COUNT))
        # Word 0 is the number of series.
        self._words = memory[: 8 * words].cast("q")
        self._marks = memory[8 * words :].cast("I")
        self._other = len(labels.jobs) - 1
        self._job_of = {name: number for number, name in enumerate(labels.jobs)}
        self._last_queue = len(labels.queues) - 1
        # The first counter of each series, by queue and job. The memory also has them, for the next process.
        self._firsts: defaultdict[int, dict[str, int]] = defaultdict(dict)
        # Unreported endings by queue and token: slot, counter, and figures.
        self._ended: defaultdict[int, dict[str, _Noted]] = defaultdict(dict)

    # The writer's.

    def ended(self, queue: int, slot: int, ending: Ending) -> None:
        """Record an outcome that isn't reported yet."""
        figures = ending.figures or _figures_of(ending)
        try:
            counter = self._firsts[queue][figures[0]] + _OUTCOME_OF[ending.outcome]
        except KeyError:
            first = self._series_of(queue, figures[0])
            counter = first + _OUTCOME_OF.get(ending.outcome, 0)
        self._marks[slot] = counter
        self._ended[queue][ending.token] = slot, counter, figures

    def reported(self, queue: int, endings: Sequence[Ending], replies: Sequence[str]) -> None:
        """Count reported outcomes, based on the server's replies."""
        take = self._ended[queue].pop
        noted = [take(ending.token, None) for ending in endings]
        groups: dict[int, list[_Noted]] = {}
        for note, reply in zip(noted, replies, strict=True):
            if note is None:
                continue
            counter = note[1]
            if reply != "ok":
                counter = self._counter_of(counter, reply)
            try:
                groups[counter].append(note)
            except KeyError:
                groups[counter] = [note]
        for counter, group in groups.items():
            self._count(queue, counter, group)

    def _counter_of(self, counter: int, reply: str) -> int:
        """Return the counter for an outcome that the server didn't accept with `ok`; 0 if the outcome isn't counted."""
        if reply == "dead":
            return counter + _DEAD - _CRASHED
        return 1 + PLAIN.index("completions_rejected") if reply == "stale" else 0

    def _count(self, queue: int, counter: int, group: Sequence[_Noted]) -> None:
        words, marks = self._words, self._marks
        slots = [slot for slot, _, _ in group]
        first, count = min(slots), len(slots)
        if counter:
            words[counter] += count
        # Immediately: if this process dies here, its supervisor counts the marked endings.
        if max(slots) - first + 1 == count:
            marks[first : first + count] = _NO_MARKS[:count]
        else:
            for slot in slots:
                marks[slot] = 0
        if counter < self._series:
            return
        plain = (counter - self._series - 1) % _SERIES == 0
        ran = [figures for _, _, figures in group if plain or figures[3]]
        if ran:
            self._count_times(queue, ran)

    def _count_times(self, queue: int, some: Sequence[RunFigures]) -> None:
        words = self._words
        at = self._runs + _JOB * self._job_of.get(some[0][0], self._other)
        run_us = [run[3] for run in some]
        _add_to_buckets(words, at, _RUN_US, run_us)
        words[at + _JOB - 2] += sum(run_us)
        words[at + _JOB - 1] += sum([run[4] for run in some])
        wait_ms = [run[2] - run[3] // 1000 for run in some if run[1] == 1 and run[2]]
        if wait_ms:
            at = self._waits + _QUEUE * min(queue, self._last_queue)
            _add_to_buckets(words, at, _WAIT_MS, wait_ms)
            words[at + _QUEUE - 1] += max(0, sum(wait_ms))

    def aborted(self, queue: int, job: str) -> None:
        """Count a stopped attempt: its lock was lost, or its message was returned."""
        self._words[self._series_of(queue, job) + _ABORTED] += 1

    def crashed(self, queue: int, ending: Ending, reply: str) -> None:
        """Count an outcome that the supervisor reported for a dead child."""
        if reply not in ("ok", "dead"):
            return
        columns = ending.record.split(SEPARATOR, 5)
        outcome = _DEAD if reply == "dead" else _OUTCOME_OF[ending.outcome]
        # An attempt that crashed says little about how long this job runs.
        self._words[self._series_of(queue, columns[0]) + outcome] += 1

    def marked(self, mark: int) -> None:
        """Count an outcome that a dead child reported but didn't count. Only the supervisor calls this."""
        labels, at = divmod(mark, 8)
        queue, job = divmod(labels, len(self.labels.jobs))
        self._words[self._series_of(queue, self.labels.jobs[job]) + at] += 1

    def add(self, name: str, number: int = 1) -> None:
        """Increase the counter `name`, which must be in PLAIN, by `number`."""
        self._words[1 + PLAIN.index(name)] += number

    def died(self, cause: str) -> None:
        self._words[1 + len(PLAIN) + CAUSES.index(cause)] += 1

    def _series_of(self, queue: int, job: str) -> int:
        """Return the index of the first counter for this queue and job. Add the counters if they are new."""
        number = self._job_of.get(job, self._other)
        # Names that occur only in messages are looked up as OTHER: they would fill this process's memory.
        name = self.labels.jobs[number]
        known = self._firsts[queue].get(name)
        if known is not None:
            return known
        key = 1 + min(queue, self._last_queue) * len(self.labels.jobs) + number
        words, count = self._words, self._words[0]
        for at in range(self._series, self._series + _SERIES * count, _SERIES):
            if words[at] == key:
                break
        else:
            at = self._series + _SERIES * count
            if count == self._most:  # the last bucket takes all larger values
                at -= _SERIES
            else:
                words[at] = key
                words[0] = count + 1
        self._firsts[queue][name] = at + 1
        return at + 1

    # The supervisor's, between two writers.

    def take_marks(self) -> dict[int, int]:
        """Remove and return outcomes that a dead child hasn't counted, by slot. The caller passes each to `marked`."""
        taken = {}
        for slot, counter in enumerate(self._marks):
            if counter:
                at, outcome = divmod(counter - self._series - 1, _SERIES)
                key = self._words[self._series + _SERIES * at] - 1
                taken[slot] = key * 8 + outcome
                self._marks[slot] = 0
        return taken

    # Readers'.

    def series(self) -> Iterator[tuple[str, str, Sequence[int]]]:
        """For each queue and job, yield both names and the number of attempts with each of OUTCOMES."""
        words, labels = self._words, self.labels
        for at in range(self._series, self._series + _SERIES * words[0], _SERIES):
            queue, job = divmod(words[at] - 1, len(labels.jobs))
            yield labels.queues[queue], labels.jobs[job], words[at + 1 : at + _SERIES].tolist()

    def row(self, first: int, length: int) -> list[int]:
        return self._words[first : first + length].tolist()

    def job_row(self, number: int) -> list[int]:
        """Return the counters of a job: a histogram of run times, and the sums of run and CPU time in us."""
        return self.row(self._runs + _JOB * number, _JOB)

    def queue_row(self, number: int) -> list[int]:
        """Return the counters of a queue: a histogram of waits and their sum in ms."""
        return self.row(self._waits + _QUEUE * number, _QUEUE)


def counted(pages: Sequence[Counters]) -> Counted:
    """Return the sums of all pages of a worker's counters."""
    labels = pages[0].labels
    attempts: dict[tuple[str, str, str], int] = {}
    for page in pages:
        for queue, job, counts in page.series():
            for outcome, count in zip(OUTCOMES, counts, strict=True):
                if count:
                    key = queue, job, outcome
                    attempts[key] = attempts.get(key, 0) + count
    jobs = {
        name: summed([page.job_row(number) for page in pages])
        for number, name in enumerate(labels.jobs)
    }
    queues = {
        name: summed([page.queue_row(number) for page in pages])
        for number, name in enumerate(labels.queues)
    }
    plain = summed([page.row(1, len(PLAIN) + len(CAUSES)) for page in pages])
    return Counted(
        attempts,
        {name: Histogram(tuple(row[:-2]), row[-2] / 1e6) for name, row in jobs.items() if any(row)},
        {name: Histogram(tuple(row[:-1]), row[-1] / 1e3) for name, row in queues.items() if any(row)},
        {name: row[-1] / 1e6 for name, row in jobs.items() if any(row)},
        dict(zip(CAUSES, plain[len(PLAIN) :], strict=True)),
        dict(zip(PLAIN, plain, strict=False)),
    )  # fmt: skip


def summed(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the sum of each column."""
    return [sum(column) for column in zip(*rows, strict=True)]


def _figures_of(ending: Ending) -> RunFigures:
    """Return the figures in an outcome's record, with 0 for missing figures.

    A postponed run gets the attempt number 0, so that its wait isn't counted.
    """
    columns = ending.record.split(SEPARATOR, 5)
    if len(columns) < 5:
        return columns[0], 0, 0, 0, 0
    attempt = 0 if ending.outcome in _POSTPONED else int(columns[1])
    return columns[0], attempt, int(columns[2] or 0), int(columns[3]), int(columns[4])


def _add_to_buckets(
    words: memoryview, at: int, bounds: Sequence[int], values: Sequence[int]
) -> None:
    low, high = bisect_left(bounds, min(values)), bisect_left(bounds, max(values))
    if low == high:  # as in most batches
        words[at + low] += len(values)
        return
    for value in values:
        words[at + bisect_left(bounds, value)] += 1
