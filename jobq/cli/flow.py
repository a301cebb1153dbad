"""`jobq flow`: list, show, signal, cancel, retry and repair flows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import click
from msgspec import structs

from jobq.cli import output
from jobq.cli.options import group, limit_option, option, yes_option
from jobq.cli.output import Listing
from jobq.cli.session import Session, command
from jobq.client.connection import connect
from jobq.durations import counted, lasting, listed
from jobq.embedded import server as embedded
from jobq.errors import ConfigError, JobqError
from jobq.flows.checking import CheckedFlow, FlowCheck, Lost
from jobq.flows.listing import (
    FailedMember,
    FlowRow,
    failed_members,
    flow_ids,
    flow_page,
    flow_record,
    is_flow,
    known_flow,
    known_or_listed,
    purged_members,
    remove_flow,
    unserved,
)
from jobq.flows.run import FlowRun
from jobq.flows.state import (
    FLOW_OVER,
    FLOW_STATES,
    Edge,
    FlowView,
    StepView,
    step_sentence,
)

FLOWS = Listing(
    ("flow", "state", "steps", "members", "started", "took", ":remark"),
    drops=("started", "members"),
    empty="no flows here; start a flow with Flow(…).start()",
)
STEPS = Listing(
    ("step", "state", "kind", "queue", "members", "dead", "took", "after", ":remark"),
    drops=("kind", "took", "after"),
    empty="the flow has no steps",
)
#: Maximum number of flows whose ids a shell completes, latest first.
MAX_COMPLETED = 200
#: Number of failed members to list; the second limit is for --json.
NAMED, MAX_NAMED = 5, 100
_IN_QUOTES = str.maketrans(dict.fromkeys('"\\[]<>', "?"))
#: How long a shell waits for ids of flows.
COMPLETION_S = 1.0


def _completed(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return ids of flows for shell completion; an empty list if no server answers."""
    session = Session(ctx.params.get("url"), ctx.params.get("namespace"), as_json=True)
    try:
        settings = replace(session.settings, patience_s=COMPLETION_S)
        if not settings.url and not embedded.status(settings).running:
            return []
        ids = flow_ids(connect(settings=settings), MAX_COMPLETED)
    except JobqError:
        return []
    return [flow for flow in ids if flow.startswith(incomplete) and is_flow(flow)]


flow_argument = click.argument("flow", metavar="FLOW", shell_complete=_completed)


@group("flow", "list --state failed", "show import:2026-11-22", "retry import:2026-11-22 rows")
def flow() -> None:
    """List, show, signal, cancel and retry flows.

    FLOW is the name and the id of a flow, such as import:2026-11-22.
    """


@command("list", "", "--state failed --name import", "--json", group=flow)
@option(f"--state {'|'.join(FLOW_STATES)}", "Only flows in this state.")
@option("--name NAME", "Only flows with this name.")
@limit_option(50, 1_000)
def list_flows(session: Session, state: str | None, name: str | None, limit: int) -> None:
    """List flows, the newest first.

    The columns `steps` and `members` show finished/total numbers. A map may still add members. The last column shows
    problems: dead members, or a producer that stopped while adding members. The latest 1,000 flows are searched.
    """

    page = flow_page(session.client, 0, limit, name=name or "", state=state or "")
    session.say_all(map(_row, page.rows), FLOWS)
    if page.next_offset is not None:
        session.note(f"only the latest {page.next_offset:,} flows were read; there may be more")


def _row(row: FlowRow) -> dict[str, Any]:
    view = row.view
    if view is None:
        return {
            "flow": row.flow, "state": "", "steps": "", "members": "", "took": "",
            "started": output.moment(row.started_ms), "remark": row.problem,
        }  # fmt: skip
    facts = view.facts
    return {
        "flow": row.flow, "state": view.state, "steps": f"{view.over:,}/{len(facts.steps):,}",
        "members": f"{view.ended:,}/{view.members:,}", "started": output.moment(facts.created_at),
        "took": _took(view), "remark": view.remark,
    }  # fmt: skip


def _took(view: FlowView) -> str:
    facts = view.facts
    until = facts.ended_at or facts.now_ms
    return lasting((until - facts.created_at) / 1000) if facts.created_at else ""


@command("show", "import:2026-11-22", "import:2026-11-22 --json | jq .waits_for", group=flow)
@flow_argument
def show(session: Session, flow: str) -> None:
    """Show a flow: its steps, current waits, failures and critical path.

    took: time between a step becoming ready and its end. The critical path is the chain of steps that determines how
    long the flow takes.
    """
    client = session.client
    view = known_flow(client, flow)
    failures = failed_members(client, view, MAX_NAMED if session.as_json else NAMED)
    missing: dict[str, str] = {}
    with session.tolerating("workers", "list of"):
        missing = unserved(client, view)
    if session.as_json:
        session.say(structs.asdict(flow_record(view, missing)) | {"failed": failures})
        return
    for line in (*_heading(view), "", *session.lines(map(_step, _stepped(view)), STEPS)):
        click.echo(line)
    for line in _details(view, missing, failures):
        session.say({}, line)


def _heading(view: FlowView) -> Iterator[str]:
    facts = view.facts
    yield output.escaped(f"{facts.flow_id}: {view.state}, {view.progress}")
    if facts.ended_at:
        left = facts.ended_at + facts.keep_ms - facts.now_ms
        kept = f"; deleted in {lasting(left / 1000)}" if left > 0 else ""
        yield f"started {output.moment(facts.created_at)}, took {_took(view)}{kept}"
    elif facts.created_at:
        yield f"started {output.moment(facts.created_at)}, {_took(view)} ago"


def _stepped(view: FlowView) -> Iterator[tuple[FlowView, StepView]]:
    return ((view, step) for step in view.steps)


def _step(pair: tuple[FlowView, StepView]) -> dict[str, Any]:
    view, step = pair
    facts = step.facts
    return {
        "step": step.name, "state": step.state, "kind": facts.kind, "queue": facts.queue,
        "members": f"{facts.ended:,}/{facts.size:,}{'' if facts.sealed else '+'}", "dead": facts.dead or "",
        "took": _step_took(view, step), "after": ", ".join(map(edge_text, facts.after)),
        "remark": step_sentence(view, step.name),
    }  # fmt: skip


def _step_took(view: FlowView, step: StepView) -> str:
    facts = step.facts
    until = facts.ended_at or (view.facts.now_ms if step.state == "running" else 0)
    return lasting((until - facts.ready_at) / 1000) if until and facts.ready_at else ""


def edge_text(edge: Edge) -> str:
    """Return `rows`, or for example `rows (failed)` if the edge requires an outcome other than done."""
    return edge.step if edge.when == "done" else f"{edge.step} ({edge.when})"


def _details(
    view: FlowView, missing: dict[str, str], failures: Sequence[FailedMember]
) -> Iterator[str]:
    if view.waits_for:
        yield "waits for:"
        yield from (f"  {wait.sentence}" for wait in view.waits_for)
        yield from (f"  {text}" for text in missing.values())
    if failures:
        yield "failed or cancelled:" if view.cancelled else "failed:"
        yield from (f"  {failure.mid}: {failure.reason}" for failure in failures)
        if (number := view.dead + view.cancelled) > len(failures):
            yield f"  and {number - len(failures):,} more"
    if len(view.critical_path) > 1:
        parts = (
            f"{stage.step} {lasting(stage.took_ms / 1000)}" if stage.took_ms else stage.step
            for stage in view.critical_path
        )
        yield f"critical path: {' > '.join(parts)}"
    if view.facts.refused:
        text = counted(view.facts.refused, "report")
        yield f"{text} about unknown members were dropped"


@command("graph", "import:2026-11-22", "import:2026-11-22 --format mermaid", group=flow)
@flow_argument
@option("--format text|mermaid|dot", "form", "Format of the graph.", default="text")
def graph(session: Session, flow: str, form: str) -> None:
    """Print the graph of a flow: as text, for Mermaid, or for Graphviz."""
    view = known_flow(session.client, flow)
    lines = list({"text": text_graph, "mermaid": mermaid, "dot": dot}[form](view))
    session.say({"flow": view.facts.flow_id, "form": form, "graph": "\n".join(lines)}, *lines)


def text_graph(view: FlowView) -> Iterator[str]:
    """Yield one line for each step, in layers: `2  stats (running)  <- rows, gate (ended)`."""
    for number, names in enumerate(view.layers, 1):
        for name in names:
            step = view.by_name[name]
            waits = ", ".join(map(edge_text, step.facts.after))
            yield f"{number}  {name} ({step.state})" + (f"  <- {waits}" if waits else "")


def mermaid(view: FlowView) -> Iterator[str]:
    """Yield the lines of a Mermaid flowchart that shows the flow."""
    number = {step.name: f"s{at}" for at, step in enumerate(view.steps)}
    yield "flowchart LR"
    for step in view.steps:
        yield f'  {number[step.name]}["{_quoted(step.name)}: {step.state}"]'
    for step in view.steps:
        for edge in step.facts.after:
            if edge.step in number:
                arrow = "-->" if edge.when == "done" else f"-- {edge.when} -->"
                yield f"  {number[edge.step]} {arrow} {number[step.name]}"


def _quoted(name: str) -> str:
    """Remove characters that would end a quoted string, because another program may have chosen the name."""
    return name.translate(_IN_QUOTES)


def dot(view: FlowView) -> Iterator[str]:
    """Yield the lines of a Graphviz graph that shows the flow."""
    yield "digraph flow {"
    yield "  rankdir=LR;"
    for step in view.steps:
        name = _quoted(step.name)
        yield f'  "{name}" [label="{name}\\n{step.state}"];'
    for step in view.steps:
        for edge in step.facts.after:
            label = "" if edge.when == "done" else f' [label="{edge.when}"]'
            yield f'  "{_quoted(edge.step)}" -> "{_quoted(step.name)}"{label};'
    yield "}"


@command(
    "signal", "import:2026-11-22 approved", """import:2026-11-22 approved '{"by": "ann"}'""", group=flow,
    operation="flow-signal",
)  # fmt: skip
@flow_argument
@click.argument("step")
@click.argument("value", required=False)
def signal(session: Session, flow: str, step: str, value: str | None) -> None:
    """Send a signal to a flow's step STEP, which then stops waiting.

    Other steps can use VALUE, which is JSON. If the step isn't waiting yet, the signal is stored.
    """
    run = _run(session, flow)
    content = None if value is None else _json(value)
    with session.operation("", f"flow:{flow} step:{step}"):
        run.signal(step, content)
    session.say({"flow": flow, "step": step}, f"{flow}: {step} was signalled")


@command(
    "cancel", "import:2026-11-22", "import:2026-11-22 --yes", group=flow, operation="flow-cancel"
)
@flow_argument
@yes_option
def cancel(session: Session, flow: str, yes: bool) -> bool:
    """Cancel a flow: stop enqueueing its messages, and cancel its enqueued messages.

    A running job is cancelled when its worker next renews its lease, by default within 5 seconds. Exit code 1: the flow
    has already ended.
    """
    run = _run(session, flow)
    view = run.status()
    if view.state in FLOW_OVER:
        session.say({"flow": flow, "cancelled": False}, f"{flow} is {view.state} already")
        return False
    session.confirmed(f"Cancel {flow} ({view.progress})?", yes)
    with session.operation("", f"flow:{flow}"):
        run.cancel()
    session.say({"flow": flow, "cancelled": True}, f"{flow}: cancelled; no more messages are sent")
    return True


@command("retry", "import:2026-11-22", "import:2026-11-22 rows", group=flow, operation="flow-retry")
@flow_argument
@click.argument("step", required=False)
def retry(session: Session, flow: str, step: str | None) -> bool:
    """Retry the dead members of a flow or of one step. When they are done, the following steps run.

    If the dead message of a map's member was purged, the member can't run again. Exit code 1: no member can run again.
    """
    run = _run(session, flow)
    view = run.status()
    known = view.by_name if step is None else {step: view.by_name.get(step)}
    number = sum(step_view.facts.dead for step_view in known.values() if step_view is not None)
    with session.operation("", f"flow:{flow}" + (f" step:{step}" if step else "")) as performed:
        run.retry(step)
        gone = purged_members(session.client, flow)
        lost = min(number, sum(gone[name] for name in known))
        performed.set(number=number - lost)
    text = f"{flow}: {counted(number - lost, 'member')} will run again"
    if lost:
        text += f"; {counted(lost, 'other')} can't, because they were purged or have expired"
    reviving = [step.facts for step in run.status().steps if step.facts.reviving]
    if reviving:
        text += (
            f"; workers revive the rest: {reviving[0].revived:,} of {reviving[0].size:,} members of "
            f"{reviving[0].name} so far"
        )
    session.say({"flow": flow, "retried": number - lost, "purged": lost}, text)
    return number > lost


@command("delete", "import:2026-11-22", group=flow, operation="flow-delete")
@flow_argument
def remove(session: Session, flow: str) -> bool:
    """Delete the record of a finished flow, or of a flow that was never started.

    The flow's dead messages stay in their queues. Exit code 1: the flow is still running.
    """
    view = known_flow(session.client, flow)
    with session.operation("", f"flow:{flow}"):
        word = remove_flow(session.client, flow)
    if word == "running":
        session.say({"flow": flow, "deleted": False}, f"{flow} is {view.state}; cancel it first")
        return False
    session.say({"flow": flow, "deleted": True}, f"{flow}: deleted")
    return True


@command(
    "check", "", "import:2026-11-22", "import:2026-11-22 --lost done", group=flow, changes=True,
    operation="flow-check",
)  # fmt: skip
@click.argument("flows", metavar="[FLOW]...", nargs=-1, shell_complete=_completed)
@option("--lost done|cancelled", "How to count lost members.")
def check(session: Session, flows: tuple[str, ...], lost: Lost | None) -> bool:
    """Repair all unfinished flows, or the given flows.

    The command delivers pending results from queues to flows, and checks that each running member, which is one call of
    a step, is in a queue. Use it after a failover that lost writes. Exit code 1: some members are in no queue.
    """
    for flow in flows:
        known_or_listed(session.client, flow)
    checks, nlost = FlowCheck(session.client, lost), 0
    with session.operation(None, f"flows:{','.join(flows) or '*'}") as performed:
        for name, entries in session.from_each(None, lambda q: [(q.name, checks.drain(q.name))]):
            if entries:
                text = f"queue {name}: {entries:,} {'entry' if entries == 1 else 'entries'} delivered to flows"
                session.say({"queue": name, "entries": entries}, text)
        number = 0
        for flow in flows or flow_ids(session.client):
            with session.tolerating(flow, "flow"):
                done = checks.flow(flow)
                number, nlost = number + 1, nlost + done.nlost
                _say_checked(session, done, named=bool(flows))
        performed.set(number=number)
    session.note(f"{counted(number, 'flow')} checked")
    return not nlost


def _say_checked(session: Session, done: CheckedFlow, *, named: bool) -> None:
    record = done._asdict() | {"queue": None}
    if not done.state:
        session.say(record, f"{done.flow}: deleted; removed from the list")
        return
    said = [f"{done.flow}: {done.state}"]
    if done.ended:
        said.append(f"ends of {counted(done.ended, 'member')} found")
    if done.nlost:
        said.append(f"no trace of {counted(done.nlost, 'member')}: {listed(list(done.lost))}")
    if named or len(said) > 1:
        session.say(record, "; ".join(said))


def _run(session: Session, flow: str) -> FlowRun:
    facts = known_flow(session.client, flow).facts
    return FlowRun(facts.name, facts.id, client=session.client)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"value {text!r:.80} is not JSON ({error}); put text in double quotes: '\"yes\"'"
        ) from None
