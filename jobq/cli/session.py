"""What one command works with: the server it was pointed at and how it prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from jobq.cli import output
from jobq.config import ServerSettings, parse_queues, settings_from_env
from jobq.errors import ConfigError

if TYPE_CHECKING:
    from jobq.engine.connection import Client
    from jobq.engine.queue import Queue


@dataclass(frozen=True)
class Session:
    """One command line. `namespace` and `url`: None = as the environment says, else the default."""

    url: str | None
    namespace: str | None
    as_json: bool

    @cached_property
    def settings(self) -> ServerSettings:
        """How to reach the server."""
        settings = settings_from_env()
        url, namespace = self.url or settings.url, self.namespace or settings.namespace
        # A command that says it enqueued has done so.
        return replace(settings, url=url, namespace=namespace, outage_buffer=0)

    @cached_property
    def client(self) -> Client:
        """The connection, made when first asked for."""
        from jobq.engine.connection import connect

        return connect(settings=self.settings)

    def queue(self, name: str) -> Queue:
        """The queue `name`."""
        from jobq.engine.queue import Queue

        return Queue(name, self.client)

    def queues(self, names: str | Iterable[str] | None) -> list[Queue]:
        """The queues named, all that were ever used without any."""
        from jobq.engine.directory import queue_names

        if isinstance(names, str):
            names = [name for name, _ in parse_queues(names)]
        return [self.queue(name) for name in names or queue_names(self.client)]

    def only(self, names: str | None, place: str) -> Queue:
        """The one queue that a command works on."""
        queues = self.queues(names) if names else []
        if len(queues) != 1:
            raise ConfigError(
                f"{place} works on one queue, not on {names or 'none'}; give --queues NAME"
            )
        return queues[0]

    def say(self, record: dict[str, Any], text: str) -> None:
        """One fact: a JSON line, or `text` with what it quotes made harmless."""
        click.echo(output.json_line(record) if self.as_json else output.escaped(text))

    def say_all(self, records: Iterable[dict[str, Any]], columns: dict[str, str]) -> None:
        """Many: a JSON line each, or a table; `columns` is heading -> field."""
        for line in self.lines(records, columns):
            click.echo(line)

    def lines(self, records: Iterable[dict[str, Any]], columns: dict[str, str]) -> Iterable[str]:
        """What say_all prints."""
        if self.as_json:
            return map(output.json_line, records)
        rows = ([record[field] for field in columns.values()] for record in records)
        return output.table(list(columns), rows)

    def note(self, text: str) -> None:
        """A remark for a person, on stderr; none with --json."""
        if not self.as_json:
            click.echo(output.escaped(text), err=True)

    def confirmed(self, question: str, yes: bool) -> None:
        """Go on only with --yes or after a person agrees."""
        if not yes:
            click.confirm(output.escaped(question), abort=True, err=True)
