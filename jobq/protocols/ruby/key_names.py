"""Names of Resque's and Sidekiq's keys, and of the keys that an intake adds.

=====================  ===============================================  ================================
content                Sidekiq, namespace '' unless redis-namespace     Resque, namespace 'resque'
=====================  ===============================================  ================================
a queue                list `queue:low`, new jobs at the left           list `resque:queue:low`, new jobs at the right
names of queues        set `queues`                                     set `resque:queues`
scheduled jobs         zsets `schedule` and `retry`, by epoch seconds   (none without a plug-in)
dead jobs              zset `dead`, by epoch seconds                    list `resque:failed`
workers                set `processes`, hash per process                set `resque:workers`
=====================  ===============================================  ================================

An intake's keys are in the slot of the list that it empties: `jobq:intake:{queue:low}:claims`.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from jobq.client.acl import literal, selector
from jobq.client.names import checked_name
from jobq.errors import ConfigError

System = Literal["sidekiq", "resque"]
_TAG = re.compile(r"\{[^}]+\}")


class RubyQueueName(NamedTuple):
    """One Ruby queue. `namespace` is the prefix of every key; Sidekiq has none by default."""

    system: System
    namespace: str
    queue: str

    def __str__(self) -> str:
        return f"{self.system} {self.key(f'queue:{self.queue}')}"

    def key(self, name: str) -> str:
        """Return a key of Sidekiq or Resque, with the namespace as its prefix."""
        return f"{self.namespace}:{name}" if self.namespace else name

    @property
    def is_pattern(self) -> bool:
        """Return whether the name is a pattern, as in Resque: `*` includes matching queues, and `!` excludes them."""
        return bool(_IN_PATTERNS.search(self.queue))

    def matches(self, name: str) -> bool:
        """Return whether this pattern matches a queue's name. A leading `!` is ignored."""
        return fnmatchcase(name, self.queue.removeprefix("!"))

    @property
    def list_key(self) -> str:
        """The key of the queue's list."""
        return self.key(f"queue:{self.queue}")

    @property
    def oldest(self) -> str:
        """The end of the list from which the next job is taken."""
        return "RIGHT" if self.system == "sidekiq" else "LEFT"

    @property
    def newest(self) -> str:
        """The end of the list where jobs are added."""
        return "LEFT" if self.system == "sidekiq" else "RIGHT"


#: Namespace of each system if no other namespace is chosen.
DEFAULT_NAMESPACE: dict[System, str] = {"sidekiq": "", "resque": "resque"}
#: Characters that make a queue's name a pattern, as in Resque: `*`, `mail_*`, `!slow`.
_IN_PATTERNS = re.compile(r"[*?\[\]]|^!")


def checked_queue(system: System, queue: str, namespace: str) -> RubyQueueName:
    """Return the queue with this name and namespace, both unchanged; raise ConfigError if they are invalid."""
    # The jobq queue has the same name, so the name must be valid there.
    checked_name(f"{system} queue", queue)
    if any(c.isspace() or not c.isprintable() for c in namespace):
        raise ConfigError(
            f"{system} namespace {namespace!r} can't be used; use printable characters"
        )
    return RubyQueueName(system, namespace, queue)


def system_of(system: System, namespace: str | None = None) -> RubyQueueName:
    """Return a RubyQueueName with an empty queue name, to build other keys of the system."""
    return RubyQueueName(system, DEFAULT_NAMESPACE[system] if namespace is None else namespace, "")


def queue_named(system: System, text: str, namespace: str | None = None) -> RubyQueueName:
    """Parse a queue named on the command line.

    If no namespace was chosen, a name with the default namespace as its prefix is rejected, because the user may have
    meant that namespace.

    Args:
        namespace: The chosen namespace, None if none was chosen.
    """
    text, usual = text.strip(), DEFAULT_NAMESPACE[system]
    if namespace is None and usual and text.startswith(f"{usual}:"):
        raise ConfigError(
            f"{system} queue {text!r} begins with the namespace {usual!r}; write {text[len(usual) + 1 :]}, or add "
            f"--{system}-namespace {usual} if {text!r} is the queue's full name"
        )
    return checked_queue(system, text, usual if namespace is None else namespace)


def beside(key: str, namespace: str, name: str) -> str:
    """Return a key of jobq in the same slot as `key`: `beside("queue:low", "jobq", "claims")`."""
    tagged = key if _TAG.search(key) else f"{{{key}}}"
    return f"{namespace}:intake:{tagged}:{name}"


def rights_to_look(namespace: str = "jobq") -> list[str]:
    """Return ACL rules to add to a user, so that the user may also see the queues of Sidekiq and Resque.

    The data of Sidekiq's processes isn't included, because the names of their keys begin with host names.
    """
    listed = [
        ruby_queue_name.key(name)
        for ruby_queue_name in (
            RubyQueueName("sidekiq", "", ""),
            RubyQueueName("resque", "resque", ""),
        )
        for name in (
            "queues",
            "queue:*",
            "processes" if ruby_queue_name.system == "sidekiq" else "worker*",
        )
    ]
    claims = f"%R~{literal(checked_name('namespace', namespace))}:intake:*"
    return [
        *selector(
            " ".join(f"%R~{key}" for key in listed), ["exists", "llen", "lrange", "smembers"]
        ),
        *selector(claims, ["llen", "lrange", "zrange"]),
    ]
