"""Decides which queue is next, and how many messages to fetch from it. It doesn't call the server.

With weights, queues take turns by smooth round robin: with 6:1, the second queue gets every seventh turn. With
`strict`, the first queue that has messages is next. An empty queue is skipped until another queue returns messages. A
sleeping queue is skipped until it is woken. Each turn of a queue with partitions goes to its next partition.
"""

from __future__ import annotations

from collections.abc import Sequence

#: A batch is at most this many times as large as the previous batch.
GROWTH = 4
#: How long an ending waits so that others are reported with it, and how recent the last report must be for that.
GATHER_S, RECENT_S = 0.001, 0.005
#: Messages are fetched ahead while reports follow one another as fast as this.
FAST_S = 0.05


class QueueTurns:
    """Chooses which queue a child queries next. Queues are given by index."""

    def __init__(
        self, weights: Sequence[int], strict: bool = False, bases: Sequence[str] = ()
    ) -> None:
        """Start with all queues ready for a query.

        Args:
            bases: For each partition, the name of its partitioned queue; for other queues, their own names. Queues with
                the same base share the weight of the first such queue.
        """
        self._weights = list(weights)
        self._strict = strict
        # For each queue, the first queue of its base.
        firsts: dict[str, int] = {}
        self._first_of = [firsts.setdefault(name, index) for index, name in enumerate(bases)]
        self._partitioned = len(firsts) < len(self._first_of)
        # Number of turns, and of each partition's last turn.
        self._nturns, self._turned = 0, [0] * len(self._weights)
        self._credit = [0] * len(self._weights)
        self._dry: set[int] = set()
        self._awake = dict.fromkeys(range(len(self._weights)))
        self.asleep: dict[int, None] = {}
        self._upcoming: int | None = None

    def next(self) -> int | None:
        """Return which queue to query now.

        If the last query of each queue returned nothing, return None and start over.
        """
        index = self._peek()
        self._upcoming = None
        if index is None:
            self._dry.clear()
        elif self._partitioned:
            self._count_turn(index)
        return index

    def record(self, index: int, anything: bool) -> None:
        if not anything:
            self._dry.add(index)
            if self._upcoming == index:
                self._upcoming = None
        else:
            self._dry.clear()

    def sleeps(self, index: int) -> None:
        """Skip an empty queue until the next call to `wakes`."""
        if index in self._awake:
            del self._awake[index]
            self.asleep[index] = None
            self._dry.discard(index)
            if self._upcoming == index:
                self._upcoming = None

    def wakes(self, index: int) -> None:
        """Stop skipping a queue, because it may have messages."""
        if index in self.asleep:
            del self.asleep[index]
            self._awake[index] = None
            self._awake = dict.fromkeys(sorted(self._awake))
            self._forget_credit(index)
            if self._strict:
                self._upcoming = None

    def _forget_credit(self, index: int) -> None:
        if not self._partitioned:
            self._credit[index] = 0
            return
        first = self._first_of[index]
        if not any(self._first_of[i] == first for i in self._awake if i != index):
            self._credit[first] = 0

    def _count_turn(self, index: int) -> None:
        self._nturns += 1
        self._turned[index] = self._nturns

    def stays(self, index: int) -> bool:
        """Return whether the next turn belongs to this queue. If so, calling this method uses up that turn."""
        if self._strict and not self._partitioned:
            return index == 0
        if self._peek() != index:
            return False
        self._upcoming = None
        if self._partitioned:
            self._count_turn(index)
        return True

    def _peek(self) -> int | None:
        if self._upcoming is None:
            there = [i for i in self._awake if i not in self._dry]
            self._upcoming = self._pick_partition(there) if self._partitioned else self._pick(there)
        return self._upcoming

    def _pick(self, there: list[int]) -> int | None:
        if self._strict or len(there) < 2:
            return there[0] if there else None
        for i in there:
            self._credit[i] += self._weights[i]
        best = max(there, key=lambda i: self._credit[i])
        self._credit[best] -= sum(self._weights[i] for i in there)
        return best

    def _pick_partition(self, there: list[int]) -> int | None:
        """Choose the next queue, and return its partition that has waited longest."""
        first = self._pick(sorted({self._first_of[i] for i in there}))
        members = [i for i in there if self._first_of[i] == first]
        return min(members, key=lambda i: self._turned[i], default=None)


class BatchSize:
    """Decides how many messages to fetch from a queue in one call, so that they run for about `target_s`.

    The number starts at one, at most quadruples with each call, and is at most `most`. After a slow call, it
    shrinks immediately. With a batch job, it is a multiple of the batch size.
    """

    def __init__(self, most: int, target_s: float, together: int = 0) -> None:
        #: Maximum number of calls in a batch; 0 if the queue has no batch job.
        self.together = together
        self.size = max(1, together)
        #: Seconds per message in the last batch.
        self.each_s = target_s
        self._most = most
        self._target_s = target_s

    def ran(self, count: int, seconds: float) -> None:
        """Record the run time of a batch of `count` messages."""
        self.each_s = max(1e-6, seconds / count)
        fitting = int(self._target_s * count / seconds) if seconds > 0 else self._most
        self.size = max(1, min(self._most, self.size * GROWTH, fitting))
        if self.together:
            self.size = max(self.together, self.size // self.together * self.together)


class EndingPace:
    """Decides how many messages to prefetch, and whether to delay a report so that it includes more outcomes.

    Both depend on how fast jobs finish.

    Args:
        slow_s: If jobs take this long on average, nothing is prefetched, because jobs that began together also end
            together: prefetched messages would wait until the supervisor takes them back.
    """

    def __init__(self, most: int, slow_s: float) -> None:
        self._most, self._slow_s = most, slow_s
        self._reported_at = float("-inf")
        # Number of recent ends, and the sum of their run times. Each report halves what earlier ones have added.
        self._nrecent = self._recent_s = 0.0
        #: Number of messages to fetch beyond the running messages.
        self.nahead = 0
        # Number of endings in the current period of FAST_S and in the previous period; the lesser of the last two.
        self._began_at, self._nnow, self._nbefore, self._nsteady = 0.0, 0, 0, 0

    def reports(self, nended: int, ran_s: float, now: float) -> None:
        """Record a report of `nended` finished messages. Their runs took `ran_s` in total."""
        if not nended:
            return
        self._nrecent, self._recent_s = self._nrecent / 2 + nended, self._recent_s / 2 + ran_s
        # In the long run, twice as many as end between two reports.
        ahead = self.nahead // 2 + nended
        if now - self._reported_at >= FAST_S:
            self._began_at, self._nnow, self._nbefore, self._nsteady = now, 0, 0, 0
            ahead = 0
        elif now - self._began_at >= FAST_S:
            # Many jobs may end together, between two reports of a few endings each. A number that ended in both
            # periods is likely to end, and so to make room, in the next period.
            self._nsteady = min(self._nnow, self._nbefore)
            self._began_at, self._nnow, self._nbefore = now, 0, self._nnow
        self._nnow += nended
        is_slow = self._recent_s >= self._slow_s * self._nrecent
        self.nahead = 0 if is_slow else min(self._most, max(ahead, self._nsteady))
        self._reported_at = now

    def gathers(self, now: float) -> bool:
        """Return whether the last report was so recent that the next report should wait for more outcomes."""
        return now - self._reported_at < RECENT_S
