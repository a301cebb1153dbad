"""jobq beside its peers: each in a venv (or node_modules) of its own, all on the same private server.

`python -m bench --peers [CASE…]` or `make bench-peers`. A peer's module is imported by that venv's Python
alone and offers `each` (enqueue one at a time), `many` (as fast as it can), `later` (in an hour) and
`worker` (the commands of a worker with so many processes); its docstring says which settings make the
peer fastest, and what they cost.
"""

from __future__ import annotations

from typing import NamedTuple

CASES = ("enqueue", "drain1", "drain2", "cpu", "pickup", "size")
CLIENT = ("redis==8.1.0", "hiredis==3.5.0")


class Peer(NamedTuple):
    """What is installed, how many no-op jobs take it some seconds, and which cases it has."""

    requires: tuple[str, ...]
    jobs: int
    cases: tuple[str, ...] = CASES
    registry: str = "PyPI"


#: jobq and the limits run in the venv of this repository: they require nothing.
PEERS = {
    "own": Peer((), 150_000),
    "scripts": Peer((), 130_000, ("enqueue", "drain1", "drain2")),
    "lists": Peer((), 30_000, ("enqueue", "drain1", "drain2", "cpu", "pickup", "size")),
    "bare": Peer((), 0, ("cpu",)),
    "rq": Peer(("rq==2.12.0", *CLIENT), 1_500),
    "celery": Peer(("celery==5.7.0", "packaging", *CLIENT), 3_000),
    "dramatiq": Peer(("dramatiq==2.2.1", *CLIENT), 15_000),
    "huey": Peer(("huey==3.5.4", *CLIENT), 15_000),
    "arq": Peer(("arq==0.28.0", "hiredis==3.5.0", "uvloop==0.23.0"), 5_000),
    "saq": Peer(("saq[redis,hiredis]==0.26.4", "typing_extensions", "uvloop==0.23.0"), 6_000),
    "taskiq": Peer(("taskiq==0.13.0", "taskiq-redis==1.2.4", "uvloop==0.23.0", *CLIENT), 10_000),
    "bullmq": Peer(("bullmq@5.81.5",), 30_000, registry="npm"),
}
#: How the table names them.
NAMES = {
    "own": "jobq",
    "scripts": "limit: bare loop over jobq's scripts",
    "lists": "limit: LPUSH, LMOVE, LREM",
    "bare": "limit: two bare processes",
}
