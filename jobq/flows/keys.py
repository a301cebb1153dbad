"""Names of a flow's keys: `jobq:flow:{import:2026-11-22}:meta`. The flow is the hash tag.

=================  =======================================================================
meta               hash: `definition` (its hash), `state`, `home` (queue), `keep` (ms), `created`, `begun`, `over`
                   (epoch ms), `run` (the run id, as in mids), `parent` (`flow.run.step`), `bits` (the next free
                   number), `open` (sent steps that haven't ended), `failed` (ended steps without all members
                   done), `retried` (members running again), `bytes` (of results), `stamp`, `refused`, `said`;
                   `m:<step>` -> the outbox entry of the step's latest retry; `n:<step>` -> size, done,
                   ended, sealed, ready at, ended at, chunks; `x:<step>` -> the numbers of a map's members,
                   `start:length,…`
steps              hash, step -> kind, queue, source, edges and options; `>step` -> its dependents;
                   `>` -> steps without dependencies; `*` -> all steps, in order
calls              hash, step -> its call
items              hash, `step:chunk` -> the calls of a map that waits for other steps
done, ended        strings: a bit for each member, by its number in the flow; only ever set
retried            string: a bit for each revived member that hasn't ended since
failed             hash, `step:number` -> why a member isn't done, for at most 1,000 members
results            hash, `step:number` -> result; `step:0` of a wait is the value of its signal
todo               hash, step -> the item to send: kind, stamp, number of replies with it; `^` -> the parent's word
durable            string, for a minute: the last write of a drainer that waits for disks or replicas
=================  =======================================================================

`jobq:flows`, outside any slot, is a sorted set: flow -> when it was started, epoch ms.
"""

from __future__ import annotations

from jobq.client.names import checked_name

NAMES = (
    "meta", "steps", "calls", "items", "done", "ended", "retried", "failed", "results", "todo",
)  # fmt: skip
MARK = "durable"


def base(namespace: str, flow: str) -> str:
    """Return the prefix of a flow's keys."""
    return f"{checked_name('namespace', namespace)}:flow:{{{flow}}}:"


def flow_names(namespace: str) -> str:
    """Return the key of the sorted set of started flows, which is outside any flow's slot."""
    return f"{checked_name('namespace', namespace)}:flows"
