"""Four producers and four readers of one group in processes of their own, killed in between.

Every index is written once, nothing is overwritten or lost, and each group sees all. JOBQ_TOPIC_MESSAGES makes
it longer than the few seconds it takes here, with more kills.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from jobq.client.steps import drive
from jobq.topics.waiting import LogWaiter

HERE = Path(__file__).parent
MESSAGES = int(os.environ.get("JOBQ_TOPIC_MESSAGES", "6000"))
KILLS = max(10, MESSAGES // 600)
DEADLINE_S = 300 + MESSAGES / 100


class Crew:
    """Processes by place; whoever dies is replaced by a newcomer under a new name."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.nborn = 0
        self.nkilled = 0

    def notes(self, place: str) -> list[tuple[int, bytes]]:
        """What all who ever had that place, or a place that begins so, noted."""
        lines = [
            line.split(b" ", 1)
            for path in sorted(self._folder.glob(f"{place}*"))
            for line in path.read_bytes().split(b"\n")[:-1]
        ]
        return [(int(index), content) for index, content in lines]

    def start(self, place: str, *words: str) -> None:
        """Somebody new at `place`; words: what for, who, how many."""
        self.nborn += 1
        what, *rest = words
        path = str(self._folder / f"{place}.{self.nborn}")
        self._running[place] = subprocess.Popen(
            [sys.executable, str(HERE / "at_work.py"), what, self._url, path, *rest],
            env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        )

    def kill(self, place: str) -> bool:
        """Return False if the process had already ended."""
        process = self._running[place]
        alive = process.poll() is None
        process.kill()
        process.wait()
        self.nkilled += alive
        return alive

    def ended(self, place: str) -> bool:
        return self._running[place].poll() is not None

    def close(self) -> None:
        for place in self._running:
            self.kill(place)


@pytest.fixture
def crew(server, tmp_path):
    found = Crew(server.url, tmp_path)
    yield found
    found.close()


def produce(crew, place):
    """Somebody to append what is left of the share of `place`; False when nothing is."""
    left = MESSAGES // 4 - len(crew.notes(place))
    if left > 0:
        crew.start(place, "produce", f"{place}.{crew.nborn}", str(left))
    return left > 0


def run(crew, topic):
    """Let them work, and kill one of each kind at every step of the way."""
    producers, readers = [f"p{i}" for i in range(4)], [f"r{i}" for i in range(4)]
    for place in producers:
        produce(crew, place)
    for place in readers:
        crew.start(place, "read", "shared")
    deadline, step = time.monotonic() + DEADLINE_S, 1
    appended = LogWaiter(topic.client, "jobq:{orders}:topic:log")
    while True:
        assert time.monotonic() < deadline, topic.group("shared").lag()
        last = topic.describe().last
        if step <= KILLS and last >= step * MESSAGES // (KILLS + 1):
            step += 1
            reader = random.choice(readers)
            crew.kill(random.choice([one for one in producers if not crew.ended(one)] or producers))
            crew.kill(reader)
            crew.start(reader, "read", "shared")
            # Calls in flight lose their replies, and are made again.
            topic.client.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        # All of them, so no short cut.
        ended = [not produce(crew, place) for place in producers if crew.ended(place)]
        if len(ended) == 4 and all(ended) and topic.group("shared").lag().messages == 0:
            appended.close()
            return
        drive(appended.steps(last, 0.05), topic.client.ask)


@pytest.mark.long
def test_every_index_is_written_once_and_nothing_is_lost_when_producers_and_readers_are_killed(
    crew, topic
):
    topic.group("shared").subscribe()
    topic.group("witness").subscribe()
    run(crew, topic)
    assert crew.nkilled > KILLS

    messages = list(topic.read())
    found = {m.index: m.content for m in messages}
    assert list(found) == list(range(1, len(messages) + 1))
    # A repeated call is answered, not run again: no content is there twice.
    assert max(Counter(found.values()).values()) == 1
    accepted = crew.notes("p")
    assert len(accepted) >= MESSAGES
    assert len({index for index, _ in accepted}) == len(accepted)
    assert [pair for pair in accepted if found[pair[0]] != pair[1]] == []

    done = crew.notes("r")
    assert [pair for pair in done if found[pair[0]] != pair[1]] == []
    assert {index for index, _ in done} == set(found)

    with topic.reader("witness", commit="auto") as witness:
        seen = []
        while batch := witness.poll(1_000).messages:
            seen += batch
    assert seen == messages
