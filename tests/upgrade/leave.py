"""Keep what a release writes, so that later ones are tested on it.

Run it from the checkout of the release, before work on the next begins:

    python -m tests.upgrade.leave tests/upgrade/0.1.0

Take Debian's redis-server, whose dumps every later Redis and Valkey can load. The folder then has:

    dump.rdb     a server with a message in every state, a flow, a topic, an RSMQ queue and a RELIABLEQ
    lake.tar.xz  the lake that took in the first part of that server's history
    left.json    what later releases must find

The tests also take what the checkout itself leaves. Delete the folders of releases that are no longer read.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis

from jobq.client.connection import connect, set_default_client
from jobq.config import CodecSettings, ServerSettings, parse_codec_keys
from jobq.flows.flow import Flow
from jobq.protocols.reliable import ReliableQueue
from jobq.protocols.rsmq import Rsmq
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.topics import Record, Topic

ROOT = Path(__file__).resolve().parents[2]
#: A key of tests alone; the workers of later releases are given it too.
CODEC_KEYS = "upgrade:" + "dXBncmFkZS10ZXN0cy1hbG9uZS11c2UtdGhpcy1rZXk="
FAR = datetime(2100, 1, 1, tzinfo=UTC)


def main(folder: Path, program: str = "redis-server") -> None:
    """Write the three files, with this program for the server."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="jobq-", dir="/tmp") as place:
        server = subprocess.Popen(
            [program, "--dir", place, "--port", "0", "--unixsocket", f"{place}/s", "--save", ""],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            while not Path(f"{place}/s").exists():
                time.sleep(0.01)
            expected = fill(f"unix://{place}/s", f"{place}/lake")
            redis.Redis(unix_socket_path=f"{place}/s").save()
            shutil.copy(f"{place}/dump.rdb", folder / "dump.rdb")
            pack(folder / "lake.tar.xz", Path(place) / "lake")
        finally:
            server.kill()
            server.wait()
    (folder / "left.json").write_text(json.dumps(expected, indent=1) + "\n")


def fill(url: str, lake: str) -> dict[str, object]:
    """A server with something in every state; what must become of it."""
    client = connect(url)
    set_default_client(client)
    from tests.upgrade.work import deliver, seal  # registered on the client above

    letters = Queue("letters", client)
    letters.admin.events_level("all")
    letters.admin.events_maxlen(1_000_000)
    taken = held_and_ended(letters, deliver)
    subprocess.run(
        [sys.executable, "-m", "jobq", "lake", "ingest", "--lake", lake, "--once", "--url", url],
        check=True, cwd=ROOT, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    in_lake = redis.from_url(url).xlen("jobq:{letters}:events")

    for i in range(20):
        deliver.options(mid=f"ready-{i}").enqueue(f"ready-{i}")
    for i in range(5):
        deliver.options(mid=f"due-{i}", delay=1).enqueue(f"due-{i}")
    deliver.options(mid="far", at=FAR).enqueue("far")
    deliver.options(mid="updated").enqueue("old")
    deliver.options(mid="updated", on_conflict="replace").enqueue("new")
    deliver.options(mid="long-lock", lease=10).enqueue("long-lock")
    deliver.options(mid="cancelled").enqueue("cancelled")
    letters.cancel("cancelled")
    deliver.options(mid="paused", queue="paused").enqueue("paused")
    Queue("paused", client).admin.pause()
    sealing = connect(
        url,
        settings=ServerSettings(url=url, codec=CodecSettings(keys=parse_codec_keys(CODEC_KEYS))),
    )
    set_default_client(sealing)
    seal.options(mid="sealed").enqueue("sealed")
    set_default_client(client)

    flow = Flow("trip", id="1", client=client)
    flow.step(
        deliver.args("arrived"), name="end", after=flow.step(deliver.args("left"), name="begin")
    )
    run = flow.start().status().facts.run

    topic = Topic("readings", client)
    topic.append_many([Record(b"%d" % i, f"meter-{i % 3}", {"unit": "kWh"}) for i in range(30)])
    group = topic.group("bills")
    group.subscribe()
    with topic.reader("bills") as reader:
        reader.commit(reader.poll(10))

    rsmq = Rsmq(client)
    rsmq.create_queue("mails", vt=1)
    rsmq.send_messages("mails", ["one", "two", "three"])
    rsmq.receive_message("mails")
    parcels = ReliableQueue(client)
    parcels.push("parcels", "red", "green", "blue")
    parcels.pop(1, 0, "parcels")
    return {
        "events_in_lake": in_lake,
        "events": redis.from_url(url).xlen("jobq:{letters}:events"),
        "dead": ["dead"],
        "waits": ["far"],
        "never": ["cancelled", "done-0", "done-1", "done-2"],
        "runs": {
            **taken,
            **{f"ready-{i}": f"ready-{i}" for i in range(20)},
            **{f"due-{i}": f"due-{i}" for i in range(5)},
            "updated": "new",
            "long-lock": "long-lock",
            f"~{run}.begin.0": "left",
            f"~{run}.end.0": "arrived",
        },
        "unread": [str(i) for i in range(10, 30)],
    }


def held_and_ended(letters: Queue, deliver: Any) -> dict[str, str]:
    """Attempts that ended in every way, and some whose worker died; what must still run, and the dead."""
    names = [
        "done-0",
        "done-1",
        "done-2",
        "retried",
        "snoozed",
        "dead",
        "held-0",
        "held-1",
        "requeued",
    ]
    for name in names:
        deliver.options(mid=name).enqueue(name)
    held = {m.mid: m for m in letters.dequeue(100, lease=1).messages}
    outcomes = {
        "done-0": "done", "done-1": "done", "done-2": "done", "retried": "retry", "snoozed": "snooze",
        "dead": "dead",
    }  # fmt: skip
    endings = [
        Ending(
            mid=mid, token=held[mid].token, outcome=outcome,
            backoff=1 if outcome in ("retry", "snooze") else None,
        )
        for mid, outcome in outcomes.items()
    ]  # fmt: skip
    letters.finish(endings)
    letters.progress("held-0", held["held-0"].token, "half")
    deliver.options(mid="requeued", on_conflict="requeue").enqueue("newer")
    return {
        "retried": "retried", "snoozed": "snoozed", "held-0": "held-0", "held-1": "held-1", "requeued": "newer",
    }  # fmt: skip


def pack(archive: Path, folder: Path) -> None:
    """A tar of a folder, the same for the same content."""
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                info = tarfile.TarInfo(f"{folder.name}/{path.relative_to(folder)}")
                content = path.read_bytes()
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


if __name__ == "__main__":
    os.environ.pop("JOBQ_URL", None)
    main(Path(sys.argv[1]), *sys.argv[2:])
