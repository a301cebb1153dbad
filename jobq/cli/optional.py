"""The commands of optional parts, listed here so that the help can show them without importing their modules."""

from __future__ import annotations

from collections.abc import Mapping

from jobq.cli.options import Verb

#: Section of the help, and the core command to insert before ('' appends) -> the commands.
OPTIONAL = {
    ("Queues", "schedule"): {
        "flow": Verb(
            "flow",
            "flow",
            "List, show, signal, cancel and retry flows.",
        ),
    },
    ("Queues", "audit-log"): {
        "web": Verb("web", "web", "Serve the dashboard until TERM or INT.", "web"),
        "outbox": Verb("outbox", "outbox", "Enqueue calls from the outbox table of a database."),
        "metrics": Verb(
            "metrics",
            "metrics",
            "Serve metrics of queues, topics and schedules until TERM or INT.",
            "metrics",
        ),
    },
    ("Other protocols", ""): {
        "topic": Verb("topic", "topic", "Append to topics, and read them in groups."),
        "reliable": Verb(
            "reliable", "reliable", "Use RELIABLEQ queues, as the RedisRQ module does."
        ),
        "rsmq": Verb("rsmq", "rsmq", "Use RSMQ queues, as rsmqctl does."),
        "ruby": Verb("ruby", "ruby", "Show and fill the queues of Resque and Sidekiq."),
    },
    ("History", ""): {
        "lake": Verb("lake", "lake", "Keep events, topics and dead messages in a lake.", "lake"),
        "report": Verb(
            "report", "report", "Report on history: waits, errors, costs, capacity.", "lake"
        ),
        "spark": Verb("spark", "spark", "Check Spark on this machine, and open a shell.", "spark"),
    },
    ("Try it", ""): {
        "migrate": Verb(
            "migrate",
            "migrate",
            "Check what a Celery, RQ or Dramatiq code base needs to move to jobq.",
        ),
        "chaos": Verb("chaos", "chaos", "Inject faults and check that no message is lost."),
    },
}


def with_optional(core: Mapping[str, Mapping[str, Verb]]) -> dict[str, dict[str, Verb]]:
    """Add the optional commands to the sections of the help, each at its position."""
    sections: dict[str, dict[str, Verb]] = {}
    for heading, verbs in core.items():
        joined = sections.setdefault(heading, {})
        for name, verb in verbs.items():
            joined |= OPTIONAL.get((heading, name), {}) | {name: verb}
        joined |= OPTIONAL.get((heading, ""), {})
    return sections
