"""When the nemesis strikes, and by which luck: settled by the seed alone, stroke by stroke.

Each stroke has luck of its own, so how often an earlier one drew doesn't change a later one.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import NamedTuple

from jobq.chaos.stage import Fault


class Stroke(NamedTuple):
    """The `number`-th from 0, so long after the one before."""

    number: int
    pause_s: float
    luck: random.Random


def schedule(seed: int, fault: Fault) -> Iterator[Stroke]:
    """Without end: the round's length depends on the machine, and so does how many are struck."""
    for number in itertools.count():
        luck = random.Random(f"{seed} {fault.name} {number}")
        yield Stroke(number, luck.uniform(*fault.pause_s), luck)
