"""How many calls inside jobq one job takes. `python -m bench.frames` prints them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Frames, depth and modules of Job.enqueue; frames of dequeue, run and finish, of which two
#: run the job in a context of its own and check what it returned. One of each compares arguments with annotations.
ENQUEUE, RUN = (18, 6, 9), 32


def test_job_takes_few_calls():
    """In a process of its own: middleware that other tests' imports brought also takes calls."""
    said = subprocess.run(
        [sys.executable, "-m", "bench.frames"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    sent, ran = re.findall(r"^\S.*: (\d+) frames, (\d+) deep, (\d+) modules$", said, re.MULTILINE)
    assert all(int(one) <= most for one, most in zip(sent, ENQUEUE)), said
    assert int(ran[0]) <= RUN, said
