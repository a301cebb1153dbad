"""`jobq enqueue`: enqueue a job, which runs at least once."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import reduce
from typing import IO, Any

import click

from jobq.cli import output
from jobq.cli.arguments import Given, from_json, from_lines, from_words, moment_of, pairs_of
from jobq.cli.contact import lacks_data
from jobq.cli.modules import load, module_of
from jobq.cli.options import Function, import_option, option
from jobq.cli.session import Session, command
from jobq.client.names import base_of
from jobq.durations import listed
from jobq.errors import ConfigError, JobNotFoundError, JobqError, ScriptError
from jobq.jobs.job import Job
from jobq.jobs.registry import default_registry, stand_in
from jobq.jobs.results import Receipt
from jobq.jobs.states import STATE_OF
from jobq.queue import presence
from jobq.queue.presence import WorkerEntry
from jobq.queue.types import PER_CALL

#: The queue of a job that no module here defines.
DEFAULT_QUEUE = "default"
_OPTIONS = (
    option(
        "-q, --queue NAME", "Queue.  [default: the job's, else default]", shared=("JOBQ_QUEUE",)
    ),
    option("--mid TEXT", "Id of the message, rejected if a live message has it."),
    option("--delay DURATION", "Run after this delay at the earliest."),
    option(
        "--at TIME",
        "Earliest start time, such as 2026-11-21T08:00 (this host's zone, or +01:00), or epoch seconds.",
    ),
    option("--unique", "Reject a call if a call with the same arguments is waiting or running."),
    option(
        "--until WHEN",
        "With --unique or --mid: accept the same call again after done, start, or this long after done.",
    ),
    option(
        "--on-conflict WORD",
        "With --unique or --mid: skip, raise, replace or requeue if the call exists.  [default: skip]",
    ),
    option("--debounce DURATION", "Run when no equal call has arrived for this long."),
    option("--debounce-max DURATION", "With --debounce: run after this long at the latest."),
    option("--throttle DURATION", "Reject equal calls for this long after the first call."),
    option("--lease DURATION", "Minimum lease duration for this message.  [default: the worker's]"),
    option("--key TEXT", "Key of the message, such as a tenant.  [default: the job's]"),
    option("--ordered", "Run the key's messages one by one, in the order they were enqueued."),
    option("--durability LEVEL", "Wait until the server confirms memory, disk or replicas=N."),
    option("--header NAME=TEXT", "headers", "Header of the message; repeatable.", multiple=True),
    option(
        "--expires-in DURATION",
        "Expire the message unless it starts within this time after its enqueue or delay.",
    ),
    option("--retry-within DURATION", "Stop retrying this long after the enqueue."),
    option("--retries N", "Retries after a failure.  [default: the job's]", type=int),
    option(
        "--timeout DURATION", "Raise JobTimeout in the job after this long.  [default: the job's]"
    ),
    option(
        "--hard-timeout DURATION",
        "Kill the process of the job after this long.  [default: the job's]",
    ),
    option("--result-ttl DURATION", "Keep the result for this long.  [default: the job's]"),
    option("--remember DURATION", "Keep the job's outcome for this long.  [default: the job's]"),
)


def _call_options(function: Function) -> Function:
    return reduce(lambda inner, decorate: decorate(inner), reversed(_OPTIONS), function)


@command(
    "enqueue",
    "app.jobs.resize a.jpg width=200",
    "app.jobs.resize a.jpg width=200 --queue low --delay 5m --mid resize:a.jpg",
    "app.jobs.resize a.jpg --retries 0 --timeout 30s --header tenant=acme",
    "app.jobs.resize --args-json '[\"a=b.jpg\", -5]'",
    "app.jobs.resize --import app.jobs -- -5",
    "app.jobs.resize --file calls.jsonl --json",
    changes=True,
)
@click.argument("job")
@click.argument("words", metavar="[ARG|NAME=ARG]...", nargs=-1)
@option("--args-json ARRAY", "Positional arguments as a JSON array, before the ARGs.")
@option(
    "--file FILE",
    'Read one call per line: [args...] or {"args", "kwargs", "mid"}; - is stdin.',
    type=click.File("rb"),
)
@import_option
@_call_options
def enqueue(
    session: Session, job: str, words: tuple[str, ...], args_json: str | None, file: IO[bytes] | None,
    modules: tuple[str, ...], **given: Any,
) -> None:  # fmt: skip
    """Enqueue a job.

    An ARG that is valid JSON is read as JSON, and any other ARG as text. NAME=ARG is a keyword argument. With --import,
    JOB must be in that module and accept the arguments. Without --import, the command looks for the module in JOB, such
    as app.jobs in app.jobs.resize, and rejects the call if the module declares jobs, but not JOB. If no module is
    found, the command enqueues JOB to --queue, or to `default` if a worker of `default` has JOB.
    """
    definition = find(job, modules)
    if job not in default_registry and not given["queue"]:
        _require_worker(session, job)
    target = definition.options(client=session.client, **options_of(given))
    if file is not None:
        if words or args_json or given["mid"]:
            raise ConfigError(
                f"ARGs, --args-json and --mid can't be used with --file {_name(file)!r}; write them into the file"
            )
        _many(session, target, file)
    else:
        call = from_words(words)
        if args_json:
            call.args[:0] = from_json(args_json, "--args-json")
        for receipt in next(deliver(target, [call])):
            record = record_of(receipt)
            shown = (record["mid"], record["action"], record["state"])
            session.say(record, "  ".join(filter(None, shown)))


def _require_worker(session: Session, job: str) -> None:
    workers: Sequence[WorkerEntry] = ()
    names: dict[str, frozenset[str] | None] = {}
    if not lacks_data(session.settings):  # don't start a server for a misspelt job
        try:
            workers = presence.workers(session.client)
            names = presence.job_names(session.client, {worker.jobs for worker in workers})
        except ScriptError as error:
            session.note(f"can't check whether a worker runs {job}: {error}")
            return
    having = [worker for worker in workers if job in (names.get(worker.jobs) or ())]
    queues = sorted({base_of(queue) for worker in having for queue in worker.queues})
    if DEFAULT_QUEUE in queues:
        return
    serving = [worker for worker in workers if DEFAULT_QUEUE in map(base_of, worker.queues)]
    if unread := [worker.name for worker in serving if names.get(worker.jobs, ()) is None]:
        session.note(
            f"can't check whether a worker runs {job}: the jobs of {listed(unread)} can't be read"
        )
        return
    near = _nearest(job, {name for known in names.values() for name in known or ()})
    others = f"workers of queue {listed(queues)} have it" if queues else "no worker has it"
    raise JobNotFoundError(
        f"found no module with job {job!r:.200}, and {others}; {near or 'check its name.'} Name the job's module with "
        f"--import, or use --queue {queues[0] if queues else 'NAME'} to enqueue the call by the job's name"
    )


def options_of(given: dict[str, Any]) -> Any:
    """Convert the given flags to options of a call. Options that are not given keep the job's values."""
    lease, at, headers = given.pop("lease"), given.pop("at"), given.pop("headers")
    wanted = {
        **given,
        "at": moment_of(at) if at else None,
        "lease": lease or None,
        "headers": pairs_of("--header", headers) or None,
    }
    return {
        name: value for name, value in wanted.items() if value is not None and value is not False
    }


def record_of(receipt: Receipt[Any]) -> dict[str, Any]:
    """Convert a receipt to the record that --json prints."""
    return {
        "mid": receipt.mid, "action": receipt.action, "state": STATE_OF.get(receipt.existing_status, ""),
        "queue": receipt.queue, "job": receipt.job,
    }  # fmt: skip


def _many(session: Session, target: Job[..., Any], file: IO[bytes]) -> None:
    counted: Counter[str] = Counter()
    with output.progress(_size(file), f"enqueueing {target.name}", quiet=session.as_json) as bar:
        try:
            for receipts in deliver(target, from_lines(_counted(file, bar))):
                counted.update(receipt.action for receipt in receipts)
                if session.as_json:
                    for receipt in receipts:
                        session.say(record_of(receipt), "")
        except JobqError as error:
            raise type(error)(f"{error} ({counted.total():,} earlier calls were sent)") from error
    if not session.as_json:
        told = ", ".join(f"{number:,} {action}" for action, number in counted.items())
        session.say({}, f"{target.name}: {told or 'no calls in ' + _name(file)}")


def _counted(file: IO[bytes], bar: Any) -> Iterator[bytes]:
    for line in file:
        yield line
        bar.update(len(line))


def _size(file: IO[bytes]) -> int | None:
    size = os.fstat(file.fileno()).st_size if _name(file) != "<stdin>" else 0
    return size or None


def _name(file: IO[bytes]) -> str:
    return str(getattr(file, "name", "<stdin>"))


def find(name: str, modules: Sequence[str]) -> Job[..., Any]:
    """Return the job from these modules, or from the module that the job's name begins with.

    If no module is found, return a job with this name that accepts any arguments.
    """
    imported = list(modules) or module_of(name)
    load(imported)
    if name not in default_registry:
        _refuse_mistake(name, imported, bool(modules))
    return stand_in(name)


def _refuse_mistake(name: str, imported: Sequence[str], chosen: bool) -> None:
    """Raise JobNotFoundError if one of the imported modules should define the job but doesn't.

    Args:
        chosen: True if the user named the modules.
    """
    module, _, last = name.rpartition(".")
    own = module in imported
    value = getattr(sys.modules[module], last, None) if own else None
    if isinstance(value, Job):
        raise JobNotFoundError(f"no job {name!r}; that function's job is named {value.name}")
    if callable(value):
        raise JobNotFoundError(f"{name} isn't a job; add @job to it in {module}")
    if chosen or (own and any(job.startswith(f"{module}.") for job in default_registry.names())):
        near = _nearest(name)
        raise JobNotFoundError(f"no job {name!r:.200} here; {near or 'is its module in --import?'}")


def _nearest(name: str, others: Iterable[str] = ()) -> str:
    near = get_close_matches(name, [*default_registry.names(), *others], 1)
    return f"did you mean {near[0]}?" if near else ""


def deliver(job: Job[..., Any], calls: Iterable[Given]) -> Iterator[list[Receipt[Any]]]:
    """Enqueue calls in order: calls without a mid in batches of up to 1,000, and each call with a mid separately."""
    for batch in _batches(_checked(job, calls)):
        mid = batch[0].mid
        target = job.options(mid=mid) if mid else job
        yield target.enqueue_checked([(call.args, call.kwargs) for call in batch])


def _checked(job: Job[..., Any], calls: Iterable[Given]) -> Iterator[Given]:
    for call in calls:
        try:
            job.check_arguments(call.args, call.kwargs)
        except TypeError as error:
            raise ConfigError(f"{error}; see the signature of {job.name}") from error
        args, kwargs = job.decoded(list(call.args), dict(call.kwargs))
        yield Given(args, kwargs, call.mid)


def _batches(calls: Iterable[Given]) -> Iterator[Sequence[Given]]:
    batch: list[Given] = []
    for call in calls:
        if batch and (call.mid or len(batch) == PER_CALL):
            yield batch
            batch = []
        if call.mid:
            yield [call]
        else:
            batch.append(call)
    if batch:
        yield batch
