"""`jobq chaos` as people call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from jobq.chaos.faults import FAULTS
from jobq.cli.chaos import suitable
from tests.conftest import binary
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]


def chaos(*options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS"))}
    command = [sys.executable, "-m", "jobq", "chaos", *options]
    env = {**kept, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, check=False)


def test_round_on_a_named_server_leaves_nothing_there(server, redis, folder):
    redis.set("somebody's", "1")
    ran = chaos("--url", server.url, "--fault", "reset", "--jobs", "60", "--json", folder=folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    record = json.loads(ran.stdout)
    assert (record["fault"], record["holds"]) == ("reset", True)
    # A machine that stalls for longer than a lease runs a job again.
    assert record["attempts"] >= 60
    assert redis.keys("*") == [b"somebody's"]
    assert list(folder.iterdir()) == []


def test_faults_on_an_own_server_leave_no_folder(folder):
    ran = chaos(
        "--fault", "none", "--fault", "server-restart", "--jobs", "60", "--seed", "3", folder=folder
    )
    assert ran.returncode == 0, ran.stderr
    assert [line.split()[:2] for line in ran.stdout.splitlines()] == [
        ["none", "ok"], ["server-restart", "ok"],
    ]  # fmt: skip
    assert "seed 3" in ran.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["OwnServer", "OwnCluster"])
def test_servers_end_when_the_rehearsal_is_killed(folder, kind):
    program = f"""
from pathlib import Path
import psutil
from jobq.chaos.servers import {kind}
server = {kind}(Path({str(folder)!r}), {binary()!r})
print(*(child.pid for child in psutil.Process().children()), flush=True)
input()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as rehearsal:
        assert rehearsal.stdout is not None
        pids = [int(pid) for pid in rehearsal.stdout.readline().split()]
        assert pids
        assert all(map(alive, pids))
        rehearsal.kill()
    until(lambda: not any(map(alive, pids)))


def alive(pid: int) -> bool:
    """Whether a process of another parent runs; nobody may wait for it where it has ended."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_server_of_somebody_else_is_not_restarted(server, redis, folder):
    ran = chaos("--url", server.url, "--fault", "server-restart", "--jobs", "10", folder=folder)
    assert ran.returncode == 2
    assert "server of its own" in ran.stderr


@pytest.mark.parametrize(
    ("url", "among", "not_among"),
    [
        (None, "server-restart", ""),
        ("redis://there", "reset", "clients-kill"),
        ("redis://there", "partition", "disk-full"),
        ("redis+cluster://there:7000", "child-kill", "reset"),
    ],
)
def test_named_server_gets_what_disturbs_nobody_else(url, among, not_among):
    names = {fault.name for fault in suitable(url)}
    assert among in names
    assert not_among not in names


def test_page_describes_every_fault():
    page = (ROOT / "docs" / "internals" / "chaos.md").read_text()
    assert [name for name in FAULTS if f"| `{name}` |" not in page] == []
