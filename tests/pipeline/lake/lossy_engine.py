"""A cluster that loses tasks, runs twins of them, and whose driver dies: without Spark, in one process, by a seed."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jobq.pipeline.engine import Engine


class DriverKilledError(BaseException):
    """An exception that jobq never catches, like SIGKILL."""


class LossyEngine(Engine):
    """Results of some tasks are lost after they wrote their files, and the tasks run again; others have twins.

    ntasks: runs of a task so far. chance: of the driver's death, at each of its steps. It dies at one of the first ten
    in any case.
    """

    def __init__(self, dice: random.Random, chance: float = 0.0) -> None:
        super().__init__("local")
        self.dice, self.chance = dice, chance
        self._steps_to_live = dice.randrange(1, 11)
        self.ntasks = self.nlost = self.ntwins = self.ndeaths = 0

    def step(self) -> None:
        """Die with some probability."""
        self._steps_to_live -= 1
        if self._steps_to_live == 0 or self.dice.random() < self.chance:
            self.ndeaths += 1
            raise DriverKilledError

    def run_units(
        self, function: Callable[[Any], Any], units: Sequence[Any], rows: int
    ) -> Iterator[Any]:
        """Run the units in any order. A driver that dies leaves what some of them wrote."""
        order = list(range(len(units)))
        self.dice.shuffle(order)
        dies_after = self.dice.randrange(len(units)) if self.dice.random() < self.chance else -1
        results: dict[int, Any] = {}
        for done, index in enumerate(order):
            results[index] = self._attempts(function, pickle.dumps(units[index]))
            if done == dies_after:
                self.ndeaths += 1
                raise DriverKilledError
        yield from (results[index] for index in range(len(units)))

    def _attempts(self, function: Callable[[Any], Any], unit: bytes) -> Any:
        while self.dice.random() < 0.15:
            self.nlost += 1
            self._attempt(function, unit)
        if self.dice.random() < 0.1:
            self.ntwins += 1
            with ThreadPoolExecutor(2) as pool:
                twins = [pool.submit(self._attempt, function, unit) for _ in range(2)]
            return self.dice.choice(twins).result()
        return self._attempt(function, unit)

    def _attempt(self, function: Callable[[Any], Any], unit: bytes) -> Any:
        self.ntasks += 1
        return pickle.loads(pickle.dumps(function(pickle.loads(unit))))
