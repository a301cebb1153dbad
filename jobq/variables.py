"""The environment variables that jobq knows. Unknown JOBQ_… variables are reported, each with a similar known name."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

PREFIX = "JOBQ_"
#: Environment variables of settings, and of options that many commands share.
KNOWN = frozenset(
    PREFIX + name
    for name in (
        "URL", "NAMESPACE", "PATIENCE", "EMBEDDED", "EMBEDDED_IDLE", "DATA", "SERVER", "FUNCTIONS", "DURABILITY",
        "DURABLE_WITHIN", "OUTAGE_BUFFER", "MAX_CONTENT", "CODEC", "CODEC_KEYS", "CODEC_ACCEPT_PLAIN", "CODEC_VALID",
        "LAKE", "PYPROJECT",
        "QUEUE", "QUEUES", "IMPORT", "JSON", "ACTOR",
    )
)  # fmt: skip
#: Variables of jobq's own tests and of a few tools.
INNER = frozenset(
    PREFIX + name
    for name in (
        "CHAOS_LEDGER", "CHAOS_LOOP", "CHAOS_RECORD",
        "AUDIT", "BURSTS", "CHAOS_JOBS", "COUNTED_JOBS", "DJANGO", "FLOWS", "KEYS", "KIT", "LIMITS", "MODEL", "OUTBOX",
        "EXAMPLES", "PAGES_DEADLINE", "PIPELINE", "REQUIRE_TOOLS", "SCHEDULES", "WEB",
        "TEST_LEDGER", "TEST_SERVERS", "TOPIC_MESSAGES",
    )
)  # fmt: skip
#: Every option of a command has a variable that begins with the command's name: JOBQ_WORKER_PROCESSES.
COMMANDS = (
    "worker", "enqueue", "queues", "workers", "control", "status", "running", "why", "cancel", "pause", "resume",
    "queue", "partitions", "key", "dead", "limit", "events", "flow", "schedule", "web", "outbox", "metrics",
    "audit-log", "check",
    "topic", "reliable", "rsmq", "ruby", "lake", "report", "spark", "embedded", "functions", "completion", "acl",
    "demo", "migrate", "chaos",
)  # fmt: skip
logger = logging.getLogger("jobq.config")
_said: set[str] = set()


def warn(environ: Mapping[str, str]) -> None:
    """Log a warning for each unknown JOBQ_… variable, once per process. Ignore variables that set command options."""
    prefixes = tuple(f"{PREFIX}{name.upper().replace('-', '_')}_" for name in COMMANDS)
    names = [name for name in environ if not name.startswith(prefixes)]
    for sentence in unknown(names, KNOWN):
        logger.warning("%s", sentence)


def unknown(names: Iterable[str], known: Collection[str]) -> list[str]:
    """Return a warning for each unknown variable JOBQ_… that this process hasn't reported yet."""
    unexpected = {
        name for name in names if name.startswith(PREFIX) and name not in {*known, *INNER, *_said}
    }
    _said.update(unexpected)
    return [_sentence(name, known) for name in sorted(unexpected)]


def _sentence(name: str, known: Collection[str]) -> str:
    from difflib import get_close_matches

    # Compare without the common prefix, which would make any two names similar.
    rests = {each.removeprefix(PREFIX): each for each in known}
    near = get_close_matches(name.removeprefix(PREFIX), rests, n=1)
    remedy = (
        f"did you mean {rests[near[0]]}?"
        if near
        else "docs/reference/configuration.md lists the variables of jobq"
    )
    return f"jobq doesn't read the variable {name}; {remedy}"
