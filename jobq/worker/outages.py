"""What the log says of queues in trouble: one line as an outage is noticed, one when it is over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jobq.worker.clock import boot_ns
from jobq.worker.log import logger
from jobq.worker.standing import AWAY, Trouble

#: A server that is away for less is not worth a line.
WORTH_A_LINE_NS = 1_000_000_000
MOST_NAMES = 5


class Outages:
    """Queues by their index."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._told: dict[int, Trouble] = {}

    def tell(self, troubles: Mapping[int, Trouble]) -> None:
        """Log what has changed."""
        if not troubles and not self._told:
            return
        now = boot_ns()
        over = [index for index in self._told if index not in troubles]
        for since in sorted({self._told[index].since for index in over}):
            back = [index for index in over if self._told[index].since == since]
            logger.info("%s: back after %d s", self._named(back), (now - since) // 10**9)
        for index in over:
            del self._told[index]
        new = {
            index: trouble
            for index, trouble in troubles.items()
            if index not in self._told or self._told[index].state != trouble.state
        }
        away = {
            index: trouble
            for index, trouble in new.items()
            if trouble.state == AWAY and now - trouble.since >= WORTH_A_LINE_NS
        }
        others = self._others(troubles)
        if away:
            since = min(trouble.since for trouble in away.values())
            logger.warning(
                "%s: server away since %d s; %s: %s",
                self._named(away), (now - since) // 10**9, others, next(iter(away.values())).why,
            )  # fmt: skip
        broken = {index: trouble for index, trouble in new.items() if trouble.state != AWAY}
        for index, trouble in broken.items():
            logger.error(
                "%s: the server refuses its calls; %s: %s; jobq fsck says what is wrong",
                self._named([index]), others, trouble.why,
            )  # fmt: skip
        self._told.update(away | broken)

    def _others(self, troubles: Mapping[int, Trouble]) -> str:
        count = len(self._names) - len(troubles)
        if not count:
            return "no other queue goes on"
        return "1 other queue goes on" if count == 1 else f"{count} other queues go on"

    def _named(self, indexes: Iterable[int]) -> str:
        names = [self._names[index] for index in indexes]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        return f"queue{'s' * (len(names) > 1)} {', '.join(names[:MOST_NAMES])}{more}"
