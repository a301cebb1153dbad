"""The server and the output of a command. This module also declares commands with the shared options."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from inspect import signature
from itertools import chain
from typing import Any, Literal, TypeVar

import click

from jobq.cli import exits, output
from jobq.cli.arguments import names_of
from jobq.cli.contact import require_data, require_listener, telling_waits
from jobq.cli.options import Command, Function, Group, by_option, server_options
from jobq.client.connection import Client, connect
from jobq.client.numbered_calls import error_code
from jobq.config import STAYING_PATIENCE_S, ServerSettings, settings_from_env
from jobq.embedded import server as embedded
from jobq.errors import ConfigError, JobqError, ScriptError, UnavailableError
from jobq.jobs.signing import Purpose, seal_for, shown_text
from jobq.queue.audit_log import Act, AuditLog, Performed
from jobq.queue.directory import listed_queues, queue_names, queue_names_by_keys
from jobq.queue.orders import this_user
from jobq.queue.partitions import with_readable_partitions
from jobq.queue.queue import Queue

T = TypeVar("T")
#: How a command finds its server. "joins": it uses an embedded server that has run in this folder. "starts": it also
#: starts an embedded server. "awaits": it also waits for a server that is away, as commands do that run until a signal.
ServerUse = Literal["joins", "starts", "awaits"]
NO_QUEUE = "no queues here yet; run 'jobq enqueue JOB', or check --url and --namespace"
embedded_log = logging.getLogger("jobq.server")
#: How long to try other queues of a Cluster after a node did not answer within the full time.
NEXT_PATIENCE_S = 1.0


@dataclass(frozen=True)
class Session:
    """The server and the output of one command.

    Attributes:
        url, namespace: None for the environment's value, or the default if the environment has none.
        changes: True if the command makes several changes, and must finish even if the reader of its output exits.
        problems: Errors after which the command continued, such as unreadable queues.
    """

    url: str | None = field(repr=False)
    namespace: str | None
    as_json: bool
    changes: bool = False
    server_use: ServerUse = "starts"
    #: The command's verb in the audit log, and who gave it; '' for the user of the system.
    verb: str = ""
    who: str = ""
    problems: dict[str, JobqError] = field(default_factory=dict, compare=False)
    #: The remarks for a person so far.
    notes: list[str] = field(default_factory=list, compare=False)
    #: The lines that no reader received.
    unread: list[str] = field(default_factory=list, compare=False)

    @cached_property
    def settings(self) -> ServerSettings:
        """Return the settings for connections to the server."""
        settings = settings_from_env(patience_s=STAYING_PATIENCE_S)
        url, namespace = self.url or settings.url, self.namespace or settings.namespace
        if not url:
            embedded.announced_by(self._note_start)
        # No outage buffer: when a command prints that it enqueued, it has.
        return replace(settings, url=url, namespace=namespace, outage_buffer=0)

    def _note_start(self, text: str) -> None:
        # A worker logs the start itself.
        if text.startswith("started") and not embedded_log.isEnabledFor(logging.INFO):
            self.note(f"{text}; set JOBQ_URL for another server")

    @cached_property
    def client(self) -> Client:
        """Return the client, which connects at first use."""
        if self.server_use == "joins":
            require_data(self.settings)
        client = connect(settings=self.settings)
        if self.server_use != "awaits":
            require_listener(client)
            client.should_give_up = telling_waits(client, self.remark)
        return client

    @contextmanager
    def operation(
        self, queue: str | Iterable[str] | None = None, filter: str = "", *, when: bool = True,
        client: Client | None = None,
    ) -> Iterator[Performed]:  # fmt: skip
        """Record the change made by the `with` block, and its outcome, in the audit log.

        If the entry can't be written, print a remark and continue.

        Args:
            queue: Names of queues; None for all queues, '' for no queue.
            filter: The changed object, such as `flow:import`.
            when: False if the block doesn't change anything, so that no entry is written.
            client: The client to use instead of the session's client.
        """
        names = "*" if queue is None else queue if isinstance(queue, str) else ",".join(queue)
        act = Act(self.who or this_user(), "cli", self.verb, names, filter)
        if not when:
            yield Performed(act)
            return
        with AuditLog(client or self.client).performing(act, self._not_audited) as performed:
            yield performed

    def _not_audited(self, error: JobqError) -> None:
        if self.client.is_lost(error):
            raise error
        text = f"not written to the audit log: {error}"
        if text not in self.notes:
            self.note(text)

    def shown(self, purpose: Purpose, queue: str, mid: str, text: str) -> str:
        """Decrypt a text about a message, such as its progress or its failure reason, if it is encrypted."""
        return shown_text(seal_for(self.settings.codec), purpose, queue, mid, text)

    def queue(self, name: str) -> Queue:
        """Return the queue `name`."""
        return Queue(name, self.client)

    def queues(self, names: str | Iterable[str] | None) -> list[Queue]:
        """Return the named queues, each with its partitions, or all queues if none is named."""
        names = names_of(names) if isinstance(names, str) else names
        if not names:
            return self._alone(queue_names(self.client))
        places, unread = with_readable_partitions(self.client, names)
        queues = self._alone(places)
        for queue in queues:
            queue.is_alone = queue.name not in unread  # so using the queue also raises the error
        for name, error in unread.items():
            with self.tolerating(name):
                raise error
        return queues

    def _alone(self, names: Iterable[str]) -> list[Queue]:
        """Return the named queues. Partitions are not added, because `names` already contains them."""
        queues = [self.queue(name) for name in names]
        for queue in queues:
            queue.is_alone = True
        return queues

    def from_each(
        self,
        names: str | Iterable[str] | None,
        read: Callable[[Queue], Iterable[T]],
        *,
        strange: bool = True,
    ) -> Iterator[T]:
        """Call `read` for each queue, and yield its values. If a queue can't be read, report a problem and continue."""
        for queue in self.readable(names, strange=strange):
            with self.tolerating(queue.name):
                yield from read(queue)

    def readable(self, names: str | Iterable[str] | None, *, strange: bool = True) -> list[Queue]:
        """Return the named queues. Without names, return all queues, up to a maximum.

        If the list of queues can't be read, report a problem, and find queues by their keys. Also report how many names
        in the list are invalid.
        """
        if names:
            return self.queues(names)
        try:
            listed = listed_queues(self.client)
            if strange:
                self.strange("queue", listed.strange)
            if listed.left_out:
                self.remark(
                    f"{listed.left_out:,} other names are on the list of queues, but only {len(listed.names):,} with "
                    f"keys or workers are checked; to check others, pass their names"
                )
            if not listed.names and not self.problems:
                self.note(NO_QUEUE)
            return self._alone(listed.names)
        except (UnavailableError, ScriptError) as error:
            # If the only server is away, nothing can be read. If the list is damaged, the keys still name the queues.
            lost = self.client.is_lost(error)
            by_keys = [] if lost else queue_names_by_keys(self.client)
            if not by_keys:
                raise
            self.problem("the list of queues", error)
            return self._alone(by_keys)

    def strange(self, kind: str, names: Sequence[bytes]) -> None:
        """Report how many names in a list are invalid. Any producer can write an invalid name."""
        if names:
            many = "entries" if len(names) > 1 else "entry"
            self.remark(
                f"{len(names):,} {many} on the list of {kind}s can't be a {kind}'s name, such as {names[0]!r:.80}; "
                "jobq check fsck --repair removes them"
            )

    @contextmanager
    def tolerating(self, name: str, kind: str = "queue") -> Iterator[None]:
        """Report an error of the server, or a missing node of a Cluster, as a problem of this queue, and continue."""
        try:
            yield
        except ScriptError as error:
            damaged = error_code(error.__cause__) == "WRONGTYPE" and kind == "queue"
            remedy = f"; jobq check fsck {name} shows the damage" if damaged else ""
            self.problem(f"{kind} {name}", ScriptError(f"{error}{remedy}"))
        except UnavailableError as error:
            if not self.client.is_cluster:
                raise
            self.problem(f"{kind} {name}", error)

    def problem(self, what: str, error: JobqError) -> None:
        """Print an error on stderr, only once. The command continues, but its exit code will not be 0."""
        if what not in self.problems:
            self._echo(f"jobq: {output.escaped(what)}: {output.escaped(str(error))}", err=True)
        self.problems[what] = error
        if isinstance(error, UnavailableError):
            # Other queues of that node would take as long again.
            self.client.patience_s = min(NEXT_PATIENCE_S, self.client.patience_s)

    def code(self, answer: object) -> object:
        """Return the exit code for the first problem, or for the command function's return value `answer`."""
        if self.problems:
            return exits.code_of(next(iter(self.problems.values())))
        if isinstance(answer, bool):
            answer = exits.OK if answer else exits.NO
        return answer or (exits.PIPE_CLOSED if self.unread else exits.OK)

    def only(self, names: str | None, place: str) -> str:
        """Return the name in `names`. Raise ConfigError if `names` doesn't contain exactly one name."""
        given = names_of(names) if names else ()
        if len(given) != 1:
            raise ConfigError(
                f"{place} works on exactly one queue, not {names or 'none'}; use --queues NAME"
            )
        return given[0]

    def say(self, record: output.OneRecord, *lines: str) -> None:
        """Print a record as a JSON line, or the escaped `lines`."""
        for line in [output.json_line(record)] if self.as_json else map(output.escaped, lines):
            self._echo(line)

    def say_all(self, records: Iterable[output.OneRecord], listing: output.Listing) -> None:
        """Print records as JSON lines, or as a table."""
        left = iter(records)
        first = next(left, None)
        if first is not None:
            for line in self.lines(chain([first], left), listing):
                self._echo(line)
        elif listing.empty and not self.problems and NO_QUEUE not in self.notes:
            self.note(listing.empty)

    def _echo(self, line: str, *, err: bool = False) -> None:
        try:
            click.echo(line, err=err)
        except BrokenPipeError:
            if not self.changes:
                raise
            output.silence_closed_pipes()
            self.unread.append(line)

    def lines(self, records: Iterable[output.OneRecord], listing: output.Listing) -> Iterable[str]:
        """Return the lines that `say_all` prints."""
        if self.as_json:
            return map(output.json_line, records)
        return listing.lines(records)

    def remark(self, text: str) -> None:
        """Print a remark on stderr, even with --json, but never print the same remark twice."""
        if text not in self.notes:
            self.notes.append(text)
            self._echo(f"jobq: {output.escaped(text)}", err=True)

    def note(self, text: str) -> None:
        """Print a remark on stderr, unless --json is set. Never print the same remark twice."""
        if text in self.notes:
            return
        self.notes.append(text)
        if not self.as_json:
            self._echo(output.escaped(text), err=True)

    def confirmed(self, question: str, yes: bool) -> None:
        """Raise click.Abort unless --yes was given or a person confirms the question."""
        if yes:
            return
        try:
            click.confirm(output.escaped(question), abort=True, err=True)
        except click.Abort:
            if not sys.stdin.isatty():
                self._echo("", err=True)
                self.remark("not confirmed; without a terminal, add --yes")
            raise


def command(
    name: str, *examples: str, group: Group | None = None, takes_negatives: bool = False,
    changes: bool = False, operation: str = "", server: ServerUse | None = None, cls: type[Command] = Command,
) -> Callable[[Function], Command]:  # fmt: skip
    """Declare a command with --url, --namespace and --json. The function receives them as a Session.

    Args:
        examples: The rest of each command line after `jobq GROUP NAME`.
        group: The command's group.
        takes_negatives: Accept `-2` as an argument. The function must then reject unknown options itself.
        changes: True if the command makes several changes, and must finish even if the reader of its output exits.
        operation: The verb in the audit log. The command then has --actor, and must make its changes within
            `session.operation()`.
        server: See `ServerUse`. By default, a command that changes something starts an embedded server.
        cls: CommandGroup for a command that also has verbs.
    """
    shared = (*server_options, by_option) if operation else server_options

    def declare(function: Function) -> Command:
        def call(url: str | None, namespace: str | None, as_json: bool, **given: Any) -> object:
            if click.get_current_context().invoked_subcommand:
                return None  # a verb of the command runs instead
            who = given.pop("who") or "" if operation else ""
            session = Session(
                url=url,
                namespace=namespace,
                as_json=as_json,
                changes=changes,
                server_use=server or ("starts" if changes or operation else "joins"),
                verb=operation,
                who=who,
            )
            return session.code(function(session, **given))

        call.__doc__ = function.__doc__
        call.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        for decorate in reversed(shared):
            decorate(call)
        # click lists the last decorated first; the shared options belong at the end of the help.
        own = len(call.__click_params__) - len(shared)  # type: ignore[attr-defined]
        call.__click_params__ = call.__click_params__[own:] + call.__click_params__[:own]  # type: ignore[attr-defined]
        settings = {"ignore_unknown_options": takes_negatives}
        made = click.command(name, cls=cls, context_settings=settings)(call)
        made.place_in(group, examples)
        made.operation = operation
        return made

    return declare


def opens(
    parameter: str, make: Callable[..., object], *options: Callable[[Function], Function]
) -> Callable[[Function], Function]:
    """Declare options of a command. The command receives the object that `make` creates from the session and the
    options.
    """
    taken = list(signature(make).parameters)[1:]

    def declare(function: Function) -> Function:
        @wraps(function)
        def call(session: Session, **given: Any) -> object:
            made = make(session, **{name: given.pop(name) for name in taken})
            return function(session, **{parameter: made}, **given)

        for decorate in reversed(options):
            decorate(call)
        return call

    return declare
