"""The monitor process: reports of crashes reach its listeners, also if one of these fails."""

from __future__ import annotations

import json
import os
import socket
import time

import pytest
from msgspec import structs

from jobq.config import WorkerSettings
from jobq.jobs.crashes import ChildDeath, CrashReport, MonitorListener
from jobq.worker.monitor import Monitor
from jobq.worker.recycle import MemoryKills
from jobq.worker.systemd import Systemd

DEATH = ChildDeath("w", 7, "signal", "child 7 was killed by SIGKILL", 1000, 2048, 0.5)
CRASH = CrashReport("resize", "low", "m", 2, False, 900, {"traceparent": "00-…"}, DEATH)


class Fails(MonitorListener):
    def died(self, death):
        raise ValueError(death.cause)


class Writes(MonitorListener):
    def __init__(self, path):
        self.path = path

    def write(self, word, what=""):
        with self.path.open("a") as file:
            file.write(json.dumps([word, str(what)]) + "\n")

    def start(self, pool):
        self.write("start", pool.slots)

    def died(self, death):
        self.write("died", death.cause)

    def crashed(self, report):
        self.write("crashed", (report.job, report.headers, report.death == DEATH))

    def stop(self):
        self.write("stop")


def test_listeners_get_every_report_before_the_process_ends(tmp_path):
    path = tmp_path / "said"
    alive_read, alive_write = os.pipe()
    monitor = Monitor(
        (Fails(), Writes(path)),
        WorkerSettings(queues=(("low", 1),), processes=1),
        [],
        ["resize"],
        3,
    )
    monitor.start(alive_write)
    monitor.tell(DEATH)
    monitor.tell(CRASH)
    long = {**CRASH.headers, "tracestate": "x" * 1025, "shop": "x" * 100_000}
    monitor.tell(structs.replace(CRASH, headers=long))
    monitor.leave()
    os.close(alive_read)
    os.close(alive_write)
    said = [json.loads(line) for line in path.read_text().splitlines()]
    assert said == [
        ["start", "3"],
        ["died", "signal"],
        ["crashed", str(("resize", {"traceparent": "00-…"}, True))],
        ["crashed", str(("resize", {"traceparent": "00-…"}, True))],
        ["stop", ""],
    ]


def test_without_listeners_there_is_no_process_and_nothing_is_counted():
    monitor = Monitor((), WorkerSettings(queues=(("low", 1),)), [], ["resize"], 1)
    monitor.start(-1)
    monitor.look_after(-1)
    monitor.tell(DEATH)
    monitor.leave()
    assert (monitor.pid, monitor.counters) == (0, None)


@pytest.mark.parametrize("name", ["path", "abstract"])
def test_systemd_hears_of_the_first_child_and_of_the_loop(name, short_folder):
    address = {"path": f"{short_folder}/notify", "abstract": f"@jobq-{os.getpid()}"}[name]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unit:
        unit.bind(address.replace("@", "\0"))
        unit.settimeout(60)
        systemd = Systemd({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "20000000"})
        systemd.ready(2)
        systemd.looped()
        systemd.looped()  # half of the time isn't over
        systemd.stopping()
        said = [unit.recv(100) for _ in range(3)]
    assert said == [b"READY=1\nSTATUS=children: 2", b"WATCHDOG=1", b"STOPPING=1"]
    Systemd({"NOTIFY_SOCKET": "/no/such"}).ready(1)
    Systemd({}).looped()


def test_kills_for_want_of_memory_are_found_in_the_cgroup(tmp_path):
    events = tmp_path / "memory.events"
    kills = MemoryKills(events)
    assert not kills.more()
    events.write_text("oom_kill 0\n")
    assert not kills.more()
    events.write_text("low 0\noom 3\noom_kill 1\noom_group_kill 0\n")
    assert kills.more()
    assert not kills.more()


def test_report_that_can_not_be_delivered_is_logged(caplog):
    monitor = Monitor((Writes(None),), WorkerSettings(queues=(("low", 1),)), [], [], 1)
    monitor.tell(DEATH)  # before the process runs
    began = time.monotonic()
    monitor.leave()
    assert not caplog.text and time.monotonic() - began < 60
