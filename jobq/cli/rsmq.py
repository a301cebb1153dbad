"""`jobq rsmq`: RSMQ's queues, with the commands, flags and lines of rsmqctl, and more."""

from __future__ import annotations

import sys

import click

from jobq.cli import rsmq_message, rsmq_queue
from jobq.cli.options import Group, Option, command
from jobq.cli.rsmq_session import REDIS_URL, VERBOSE, ns_option, opened, realtime_option
from jobq.cli.session import Session


@click.group("rsmq", cls=Group)
@click.option(
    "-r", "--redis-url", cls=Option, metavar="URL", help="Server, as --url of each command."
)
@click.option(
    "-v", "--verbose", cls=Option, is_flag=True, help="Say also what RSMQ calls an error."
)
@click.pass_context
def rsmq(ctx: click.Context, redis_url: str | None, verbose: bool) -> None:
    """Queues shared with RSMQ's clients of other languages, delivered at least once.

    Commands, flags and lines are those of rsmqctl. Exit code 1: it failed; the reason is on stderr.
    """
    ctx.meta[REDIS_URL], ctx.meta[VERBOSE] = redis_url, verbose


rsmq.examples = """
    jobq rsmq queue create -n mails
    jobq rsmq message send -n mails -m "Hello, World"
    jobq rsmq message receive -n mails
"""


@command(
    "bridge",
    examples="""
        jobq rsmq bridge --realtime
        jobq rsmq bridge < calls.jsonl
    """,
)
@ns_option
@realtime_option
def bridge(session: Session, ns: str, realtime: bool) -> None:
    """RSMQ's Node methods for any language: a JSON call per line in, a JSON answer per line out.

    {"n": 1, "method": "sendMessage", "options": {"qname": "mails", "message": "x"}} is answered by
    {"n": 1, "result": "..."} or {"n": 1, "error": {"name": ..., "message": ...}}. Methods and options are those
    of RSMQ for Node. Up to 1,000 calls may be on their way at a time.
    """
    from jobq.protocols.rsmq.bridge import Bridge

    rsmq = opened(session, ns, realtime)
    Bridge(rsmq.client, rsmq.requests).serve(sys.stdin.fileno(), sys.stdout.fileno())


for part in (rsmq_queue.queue, rsmq_message.message, bridge):
    rsmq.add_command(part)
