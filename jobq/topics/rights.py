"""What a user of topics must be allowed, read from the scripts: the line that `jobq acl topic` prints."""

from __future__ import annotations

from collections.abc import Sequence

from jobq.client.acl import allowed_for, literal
from jobq.client.functions import scripts
from jobq.client.names import checked_name
from jobq.topics import keys

#: What jobq sends to a topic's keys itself.
_OWN = ("unlink", "xrange", "xread")


def rights(namespace: str = "jobq", topics: Sequence[str] = ()) -> list[str]:
    """The words after a user's name, passwords apart: to append, read and steer `topics`, or all of them.

    Only jobq's layout: redismq's keys have no prefix that could be told from anybody else's.
    """
    called = (
        script
        for script in scripts()
        if script.area == "topic" and not script.name.startswith("redismq")
    )
    patterns = [f"{literal(keys.base(namespace, topic))}*" for topic in topics]
    names = literal(keys.topic_names(namespace))
    return [
        *(f"~{one}" for one in patterns or [f"{literal(checked_name('namespace', namespace))}:{{*}}:topic:*"]),
        "resetchannels", *allowed_for(called, _OWN),
        f"(~{names} +sadd +smembers +srem)",
    ]  # fmt: skip
