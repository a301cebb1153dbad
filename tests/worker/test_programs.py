"""Orphans that come to the supervisor, as to the first process of a container."""

from __future__ import annotations

import subprocess
import sys

import pytest

FIRST = """
import ctypes, os, subprocess, sys, time
from jobq.worker.programs import reap_orphans
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans come here
ours = subprocess.Popen([sys.executable, "-S", "-c", ""])
os.waitid(os.P_PID, ours.pid, os.WEXITED | os.WNOWAIT)
# It ends only after its parent: a shell reaps what ends before the shell does.
waits, ends = os.pipe()
shell = "exec 3<&0; cat <&3 >/dev/null & echo $!"
middle = subprocess.run(["sh", "-c", shell], stdin=waits, stdout=subprocess.PIPE, check=True)
orphan = int(middle.stdout)
os.close(waits)
os.close(ends)
os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
reap_orphans({ours.pid})
known = os.waitid(os.P_PID, ours.pid, os.WEXITED | os.WNOWAIT).si_pid == ours.pid
ours.wait()
reap_orphans(())
print(known, os.path.exists(f"/proc/{orphan}"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans go to the machine's first process")
def test_orphans_are_reaped_and_processes_that_are_waited_for_are_not():
    ran = subprocess.run(
        [sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.split() == ["True", "False"]
