"""Settings of the intake, which moves Ruby jobs to jobq queues, and the interface to its worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from jobq.client.names import is_partition
from jobq.durations import DAY_MS
from jobq.errors import ConfigError
from jobq.jobs.options import checked_job_name
from jobq.protocols.ruby.key_names import RubyQueueName, System, queue_named

#: Maximum weight of a queue, as for queues of jobq.
MAX_WEIGHT = 1_000
#: Maximum number of queues that match patterns.
MAX_MATCHES = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class IntakeSettings:
    """Settings of an intake, which moves jobs from Ruby queues to jobq queues.

    Attributes:
        ruby_queues: The Ruby queues. Their jobs go to the jobq queues with the same names.
        names: Maps names of Ruby classes to names of jobs.
        backlog: Maximum number of ready messages in the jobq queue; fewer if they would take longer than a second.
        ruby_dead: Also show dead messages in Sidekiq's dead set or Resque's failed list.
        lease_s: Seconds after which other workers take over unfinished claims.
        patterns: Patterns of queues that may appear later, with their weights, and patterns of excluded queues.
    """

    ruby_queues: tuple[RubyQueueName, ...]
    patterns: Mapping[RubyQueueName, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    backlog: int = 1_000
    ruby_dead: bool = False
    lease_s: float = 15.0

    def __post_init__(self) -> None:
        if not self.ruby_queues and not self.patterns:
            raise ConfigError("choose a Ruby queue with --sidekiq or --resque")
        for name in self.ruby_queues:
            if is_partition(name.queue):
                raise ConfigError(
                    f"{name} can't be served: a name ending with '/' and a number belongs to a partition of jobq; let "
                    "Ruby use another queue"
                )
        if not 1 <= self.backlog <= 1_000_000:
            raise ConfigError(
                f"backlog={self.backlog!r} is out of range; it must be between 1 and 1,000,000"
            )
        if not 1 <= self.lease_s <= DAY_MS / 1000:
            raise ConfigError(
                f"lease_s={self.lease_s!r} is out of range; it must be between 1 s and a day"
            )


def parse_queue_names(
    system: System, texts: Iterable[str], namespace: str | None = None
) -> dict[RubyQueueName, int]:
    """Parse the queues in repeated or comma-separated options; return the queues with their weights.

    For Sidekiq, a number after a queue is its weight: `default,5`.
    """
    weights: dict[RubyQueueName, int] = {}
    for text in texts:
        last: RubyQueueName | None = None
        for part in filter(None, map(str.strip, text.split(","))):
            if last is not None and part.isdecimal() and system == "sidekiq":
                weights[last] = _weight(last, part)
                last = None
            else:
                last = queue_named(system, part, namespace)
                weights.setdefault(last, 1)
    return weights


def _weight(queue: RubyQueueName, text: str) -> int:
    if not 1 <= int(text) <= MAX_WEIGHT:
        raise ConfigError(
            f"the weight {text} of {queue} is out of range; it must be between 1 and {MAX_WEIGHT:,}. "
            f"If {text} is another queue, add it with a separate option: --{queue.system} {text}"
        )
    return int(text)


def expanded(
    queues: Mapping[RubyQueueName, int], listed: Callable[[RubyQueueName], Iterable[RubyQueueName]]
) -> dict[RubyQueueName, int]:
    """Replace each pattern with all matching queues, except queues that a `!` pattern excludes.

    Args:
        listed: Returns all queues in the system and namespace of the given queue.
    """
    weights: dict[RubyQueueName, int] = {}
    for queue, weight in queues.items():
        if not queue.is_pattern:
            weights.setdefault(queue, weight)
        elif not queue.queue.startswith("!"):
            for name in listed(queue):
                if queue.matches(name.queue) and not _is_excluded(queues, name):
                    weights.setdefault(name, weight)
    if len(weights) > max(MAX_MATCHES, len(queues)):
        raise ConfigError(
            f"{len(weights):,} Ruby queues match, but a worker serves at most {MAX_MATCHES}; divide the queues among "
            "several workers"
        )
    return weights


def _is_excluded(queues: Iterable[RubyQueueName], name: RubyQueueName) -> bool:
    return any(
        queue.queue.startswith("!") and queue[:2] == name[:2] and queue.matches(name.queue)
        for queue in queues
    )


def parse_names(texts: Iterable[str]) -> dict[str, str]:
    """Parse the values of --ruby-job, such as `HardWorker=app.jobs.work`."""
    names: dict[str, str] = {}
    for text in texts:
        ruby, equals, job = (part.strip() for part in text.partition("="))
        if not equals or not ruby:
            raise ConfigError(f"{text!r} is not a mapping; write RubyClass=name.of.the.job")
        if names.setdefault(ruby, checked_job_name(job)) != job:
            raise ConfigError(f"{ruby} is mapped to {names[ruby]} and to {job}; use only one")
    return names


class FedWorker(Protocol):
    """The worker for an intake's jobs."""

    @property
    def name(self) -> str:
        """The worker's name."""
        ...

    @property
    def burst(self) -> bool:
        """Return whether the worker exits once no jobs are left."""
        ...

    @property
    def woken(self) -> int:
        """A file descriptor that becomes readable when the worker's state changes."""
        ...

    @property
    def supervisor(self) -> int:
        """The id of the worker's supervisor process, which receives signals."""
        ...

    @property
    def processes(self) -> int:
        """Maximum number of concurrent jobs."""
        ...

    def serve(self, queues: Mapping[str, int]) -> None:
        """Let the worker also serve these queues, with their weights."""
        ...

    def stopping(self) -> bool:
        """Return whether the intake must exit now."""
        ...

    def quiet(self) -> bool:
        """Return whether the intake must stop claiming jobs."""
        ...

    def running(self) -> list[tuple[int, str, str, int]]:
        """Return the child index, queue and mid of each running job, and the ms since the child last started a job."""
        ...

    def drain(self) -> None:
        """Read and discard the bytes in `woken`."""
        ...
