"""What the commands of `jobq rsmq` share: the namespace, and how failures are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from jobq.cli import exits, output
from jobq.cli.options import option
from jobq.cli.session import Session

if TYPE_CHECKING:
    from jobq.protocols.rsmq import Rsmq
    from jobq.protocols.rsmq.errors import RsmqError

REDIS_URL, VERBOSE = "jobq.rsmq.redis_url", "jobq.rsmq.verbose"

ns_option = option(
    "--ns", default="rsmq", show_default=True, shared=("JOBQ_RSMQ_NS",),
    help="First part of every key of RSMQ's; on a Cluster '{rsmq}'.",
)  # fmt: skip
realtime_option = option(
    "--realtime", is_flag=True, shared=("JOBQ_RSMQ_REALTIME",), help="Publish after every send."
)
name_option = option("-n", "--name", required=True, metavar="QUEUE", help="Name of the queue.")
id_option = option("-i", "--message-id", required=True, metavar="ID", help="Id of the message.")


def opened(session: Session, ns: str, realtime: bool = False) -> Rsmq:
    """RSMQ on the server named by --url, -r, the environment, in this order."""
    from jobq.protocols.rsmq import Rsmq

    ctx = click.get_current_context()
    given = ctx.meta.get(REDIS_URL)
    if given and ctx.get_parameter_source("url") is not ParameterSource.COMMANDLINE:
        session = replace(session, url=given)
    return Rsmq(session.client, ns, realtime)


@contextmanager
def telling(failed: str) -> Iterator[None]:
    """An error of RSMQ's ends the command with code 1: `failed` says what, `{reason}` in it why."""
    from jobq.protocols.rsmq.errors import QueueExistsError, QueueNotFoundError, RsmqError

    try:
        yield
    except RsmqError as error:
        name = click.get_current_context().params.get("name")
        text = f"{failed} ({error})"
        if isinstance(error, QueueNotFoundError):
            text = f"No such queue: {name}"
        elif isinstance(error, QueueExistsError):
            text = f"Queue already exists: {name}"
        fail(text, error)


def fail(text: str, error: RsmqError | None = None) -> None:
    """End the command with code 1."""
    ctx = click.get_current_context()
    if error and ctx.meta.get(VERBOSE):
        text = f"{text} [{error.name}: {error}]"
    click.echo(output.escaped(text), err=True)
    ctx.exit(exits.NO)
