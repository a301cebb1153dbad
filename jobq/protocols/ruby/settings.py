"""What an intake is told, checked where it is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from jobq.errors import ConfigError
from jobq.jobs.registry import checked_job_name
from jobq.protocols.ruby.places import Place, System, parse_place


@dataclass(frozen=True, kw_only=True, slots=True)
class IntakeSettings:
    """Which Ruby queues to empty, and how.

    places: the queues; each goes to the jobq queue of its name. names: a Ruby class's name -> the job's. backlog:
    at most so many messages are ready in the jobq queue; about a second's work where that is less. ruby_dead: show
    dead messages in Sidekiq's dead set, Resque's failed list, too. lease_ms: when others take over what an intake
    has taken and not delivered.
    """

    places: tuple[Place, ...]
    names: dict[str, str] = field(default_factory=dict)
    backlog: int = 1_000
    ruby_dead: bool = False
    lease_ms: int = 15_000

    def __post_init__(self) -> None:
        if not self.places:
            raise ConfigError("an intake needs a Ruby queue; give --sidekiq or --resque")
        if not 1 <= self.backlog <= 1_000_000:
            raise ConfigError(f"backlog={self.backlog!r} is out of range; take 1 to 1,000,000")
        if not 1_000 <= self.lease_ms <= 86_400_000:
            raise ConfigError(f"lease_ms={self.lease_ms!r} is out of range; take 1 s to a day")


def parse_places(system: System, texts: Iterable[str]) -> tuple[Place, ...]:
    """Queues as options name them: repeated, or comma-separated; each once."""
    found = (
        parse_place(system, part) for text in texts for part in text.split(",") if part.strip()
    )
    return tuple(dict.fromkeys(found))


def parse_names(texts: Iterable[str]) -> dict[str, str]:
    """`HardWorker=app.jobs.work`, as often as needed."""
    names: dict[str, str] = {}
    for text in texts:
        ruby, equals, job = (part.strip() for part in text.partition("="))
        if not equals or not ruby:
            raise ConfigError(f"{text!r} maps no name; write RubyClass=name.of.the.job")
        if names.setdefault(ruby, checked_job_name(job)) != job:
            raise ConfigError(f"{ruby} is mapped to {names[ruby]} and to {job}; give one")
    return names
