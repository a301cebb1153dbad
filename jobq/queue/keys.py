"""Names of a queue's keys, such as `jobq:{low}:messages`.

Only the queue's name is in braces, so a Cluster keeps one queue's keys in one slot.

=================  =======================================================================
messages           hash, mid -> content
locks              hash, mid -> lock expiry, ms
tokens             hash, mid -> token of the attempt that holds the lock
backoffs           hash, mid -> earliest start, ms; the same as its score in due
nattempts          hash, mid -> starts minus releases and snoozes
ncrashes           hash, mid -> crashes
nunknowns          hash, mid -> number of consecutive starts by workers that don't know the message's job
generations        hash, mid -> token of the message's first attempt (its generation), if that attempt has ended
                   but the message hasn't
requeue            hash, mid -> `not_before,lock_ms,dedupe_ms:content` to run after this run;
                   with a key `not_before,lock_ms,dedupe_ms,o,length of the key,key:content`, o if ordered
options            hash, mid -> `lock_ms,dedupe_ms`, only for messages that have their own; instead of dedupe_ms
                   `@` and the time when the mid becomes free, or `<` and the deadline for newer content to move it,
                   with `>` the newer content itself; with a key `lock_ms,dedupe_ms,slot,key`, o before the slot
                   of an ordered message
lines              hash, `slot:key` -> mid: the waiting messages of a key, by slots from its head to its tail
keys               hash, key -> its head, tail, waiting, running, turn, rate, hold and place, packed; '' = no key
turns              sorted set, keys whose messages may go, by virtual time
rests              sorted set, held keys and keys that used up their rate, by the end of the wait, ms, and in
                   a sealed queue 0x1f and each key with delayed messages, by their latest time plus 1e15, and
                   0x1f twice and each key of newer content
rules              hash, key -> `max,starts,span_ms,weight,waiting`; '' = all keys
progress           hash, mid -> the running attempt's last report, 0x1e, its checkpoint, 0x1e, the
                   latest failed attempt, 0x1f and its traceback
ready              list, mids to handle now
due                sorted set, mids with a backoff by its end
mid-circle         list, mids handed out: locks to watch, done messages to collect
done               set, finished mids: awaiting collection, or the end of a dedupe backoff
left-ready         set, mids whose copy in ready is stale
left-circle        set, mids whose copy in mid-circle is stale
dead               sorted set, `mid#generation` by time of death
dead-messages      hash, `mid#generation` -> attempts, crashes, options, reason, content
last-dead          hash, mid -> its latest `mid#generation` in the dead-letter set
quarantine         hash, bytes in a place of mids that can't be a mid -> their content
eoq-backoff?       string, PX: callers needn't poll until it expires
ndry-runs          string, PX: number of empty polls in a row
wake               list of at most one marker, which ends one child's idle wait
meta               hash: paused, events, maxlen, floor, fence, max_lease, max_content, deduped, all_since,
                   walked, plain_until, pause_ends,
                   dead_max, dead_age_ms, dead_evicted, on_dead, turn, max, members, refused, refused_at, sealed,
                   tick_number
partitions         hash, of a partitioned queue: map -> its epochs, see jobq.queue.partitions
moved-keys         set, of a sealed queue: keys whose new messages go to a partition of a newer epoch, though
                   delayed messages of these keys may still start here
seal-due           sorted set, delayed messages of a sealed queue whose keys aren't in rests yet
call:<caller>      string, PX 10 min: number and short reply of that caller's last call; with the suffix `~`,
                   PX 1 s: the write that a durable enqueue waits for
accepted:<step>    string, PX 1 h: number of a flow step's last accepted member
result:<mid>       list of one, TTL: a result
log:<mid>#<attempt>  string, PX: the last 64 KiB of an attempt's log, if its job keeps logs
django:<mid>       hash, PX: of a Django task, `call` -> its call, fence -> an attempt's record; JSON
schedules          hash, name -> `c` (declared in code) or `a` (added), and the definition as JSON
ticks              hash, name -> `last tick,p if it is paused,mid of its last run`
tick-sends         hash, schedule -> unsent message of a tick in a partitioned queue, as number, action, mid,
                   lock_ms, dedupe_ms, keyed, key and content
tick-log           list, outcomes of the last 1,000 ticks, newest first
events             stream, one entry per state change worth history
flow-outbox        stream, one entry per call that ended messages of flows or signals a flow
flow-claim         string, PX: the drainer that delivers the entries of flow-outbox
bin:<operation>    hash, PX: `w` and a mid, `d` or `r` and a dead id -> the withdrawn message; bytes
replay:<hash>      PX, while a replay from a lake is remembered: string, its last and first index, or
                   set, `mid#generation` of the re-enqueued dead messages
=================  =======================================================================
"""

from __future__ import annotations

from jobq.client.names import checked_name

_SUFFIX = {
    "circle": "mid-circle",
    "left_ready": "left-ready",
    "left_circle": "left-circle",
    "dead_messages": "dead-messages",
    "last_dead": "last-dead",
    "eoq_backoff": "eoq-backoff?",
    "ndry_runs": "ndry-runs",
    "tick_log": "tick-log",
    "tick_sends": "tick-sends",
    "flow_outbox": "flow-outbox",
    "flow_claim": "flow-claim",
    "moved_keys": "moved-keys",
    "seal_due": "seal-due",
}


def prefix(namespace: str, queue: str) -> str:
    """Return the prefix of the queue's keys."""
    return f"{checked_name('namespace', namespace)}:{{{checked_name('queue', queue)}}}:"


def key(base: str, name: str, caller: str = "") -> str:
    """Return the key that scripts know as `name`."""
    if name == "last_call":
        return f"{base}call:{caller}"
    return base + _SUFFIX.get(name, name)


def attempt_log(base: str, mid: str, attempt: int) -> str:
    """Return the key of an attempt's log."""
    return f"{base}log:{mid}#{attempt}"


def bin_of(base: str, operation: str) -> str:
    """Return the key of the data for undoing an operation."""
    return f"{base}bin:{operation}"


def accepted(base: str, step: str) -> str:
    """Return the key with the number of a step's last accepted member; `step` is `<flow>.<run>.<step>`."""
    return f"{base}accepted:{step}"


def result(base: str, mid: str) -> str:
    """Return the key of the result of `mid`."""
    return f"{base}result:{mid}"


def django_record(base: str, mid: str) -> str:
    """Return the key of the record of a Django task's attempts."""
    return f"{base}django:{mid}"


def queue_names(namespace: str) -> str:
    """Return the key of the set of all queue names ever used. It is outside the queues' slots."""
    return f"{namespace}:queues"


def spent(namespace: str, queue: str) -> str:
    """Return the key of a queue's sorted set of finished signed calls.

    The key is in the queue's slot, but producers may not write to it.
    """
    return f"{namespace}:spent:{{{queue}}}"


def workers(namespace: str) -> str:
    """Return the key of the hash of workers' heartbeats, name -> JSON."""
    return f"{namespace}:workers"


def running(namespace: str) -> str:
    """Return the key of the hash of running jobs, name of the worker -> JSON."""
    return f"{namespace}:running"


def redactions(namespace: str) -> str:
    """Return the key of the hash of arguments to hide, job name -> JSON."""
    return f"{namespace}:redact"


def jobs(namespace: str) -> str:
    """Return the key of the hash that maps digests to lists of workers' job names, as JSON."""
    return f"{namespace}:jobs"


def chart(namespace: str, queue: str) -> str:
    """Return the key of a queue's chart data; '' means the sum of all queues. See jobq/queue/charts.py."""
    return charts(namespace, f"queue:{queue}" if queue else "all")


def charts(namespace: str, part: str) -> str:
    """Return the key of one part of the chart data.

    The string `turn` names the worker that currently writes chart data. The sorted set `queues` lists the queues
    with their own data, and the string `rest` stores the sums of all other queues.
    """
    return f"{namespace}:charts:{part}"


def orders(namespace: str, worker: str) -> str:
    """Return the key of the list of JSON commands that a worker hasn't read. The list expires after a minute."""
    return f"{namespace}:orders:{worker}"


def order(namespace: str, order_id: str) -> str:
    """Return the key of a worker's JSON answer to a command. The answer expires after five minutes."""
    return f"{namespace}:order:{order_id}"


def flows(namespace: str) -> str:
    """Return the common prefix of the keys of all flows; see jobq/flows/keys.py."""
    return f"{namespace}:flow:{{"


def flow_secret(namespace: str, queue: str) -> str:
    """Return the key of a queue's secret. Anyone who can read the secret may run steps of flows in the queue.

    Users who may only read the queue can't read the secret.
    """
    return f"{namespace}:flow-secret:{{{queue}}}"


def flow_names(namespace: str) -> str:
    """Return the key of the sorted set of started flows; see jobq/flows/keys.py."""
    return f"{namespace}:flows"


def audit_log(namespace: str) -> str:
    """Return the key of the stream of people's actions; see jobq/queue/audit_log.py."""
    return f"{namespace}:audit"


def web_operation(namespace: str, operation: str) -> str:
    """Return the key of the hash for a dashboard operation; see jobq/web/operations/store.py."""
    return f"{namespace}:web:op:{operation}"


def web_operations(namespace: str) -> str:
    """Return the key of the sorted set of the dashboard's latest operations, by time."""
    return f"{namespace}:web:operations"


def web_session(namespace: str, digest: str) -> str:
    """Return the key of a dashboard session, which stores the user and the login time as JSON.

    Args:
        digest: SHA-256 of the session's id.
    """
    return f"{namespace}:web:session:{digest}"


def web_failures(namespace: str, kind: str, digest: str) -> str:
    """Return the key that counts failed logins. The count expires after 15 minutes.

    Args:
        kind: `a` for an address, `n` for a name.
        digest: SHA-256 of the address or the name.
    """
    return f"{namespace}:web:login:{kind}:{digest}"
