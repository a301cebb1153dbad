"""One producer or reader in a process of its own, which notes in a file what it was told is done.

`python at_work.py produce URL NOTES NAME COUNT`, `python at_work.py read URL NOTES GROUP`
"""

from __future__ import annotations

import os
import random
import sys
import time

from jobq.client.connection import Client
from jobq.config import ServerSettings
from jobq.errors import LeaseLostError
from jobq.topics import Reader, Topic

LEASE_S = 0.5
#: Producers are at their work for a while, so that there are some to kill.
PAUSE_S = 0.02


def produce(topic: Topic, notes: int, name: str, count: int) -> None:
    """Append `count` messages in calls of different sizes; note their indexes once told."""
    number = 0
    while number < count:
        some = [
            b"%s.%d" % (name.encode(), n)
            for n in range(number, min(count, number + random.randint(1, 20)))
        ]
        indexes = topic.append_many(some)
        lines = [b"%d %s\n" % pair for pair in zip(indexes, some, strict=True)]
        os.write(notes, b"".join(lines))
        number += len(some)
        time.sleep(random.uniform(0, PAUSE_S))


def work(reader: Reader, notes: int) -> None:
    """Note each message, then commit, for ever; what comes too late to commit is somebody else's."""
    while True:
        batch = reader.poll(random.randint(1, 50), block=1)
        lines = [b"%d %s\n" % (m.index, m.content) for m in batch.messages]
        if lines:
            os.write(notes, b"".join(lines))
            try:
                reader.commit()
            except LeaseLostError:
                continue


if __name__ == "__main__":
    what, url, path, name, *count = sys.argv[1:]
    client = Client(ServerSettings(url=url))
    notes = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    topic = Topic("orders", client)
    if what == "produce":
        produce(topic, notes, name, int(count[0]))
    else:
        work(topic.reader(name, lease=LEASE_S), notes)
