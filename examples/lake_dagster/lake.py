"""Maintain a lake with Dagster: tables as assets, a check of the files, and schedules.

dagster dev -f lake.py
"""

import json
import shlex
import subprocess
from typing import Any

import dagster as dg

#: Commands that Dagster runs. JOBQ_URL and JOBQ_LAKE name the server and the lake.
INGEST = "jobq lake ingest --once --trim --rollup 0 --wait 4m --json"
COMPACT = "jobq lake compact --wait 30m --json"
CHECK = "jobq lake check --json"
EXPIRE = "jobq lake expire --older-than 90d --yes --wait 30m --json"
VACUUM = "jobq lake vacuum --older-than 7d --wait 30m --json"


def run(command: str, context: Any, codes: tuple[int, ...] = (0,)) -> list[dict[str, Any]]:
    """Run a jobq command, log its errors and warnings, and return its JSON output."""
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    for line in done.stderr.splitlines():
        context.log.warning(line)
    if done.returncode not in codes:
        raise dg.Failure(f"`{command}` exited with {done.returncode}: {done.stderr[-500:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


@dg.asset(group_name="lake")
def events(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    """Copy new events of all queues from the server to the lake."""
    [ingested] = run(INGEST, context)
    return dg.MaterializeResult(
        metadata={name: ingested[name] for name in ("events", "topics", "dead", "batches")}
    )


@dg.multi_asset(
    outs={name: dg.AssetOut(dagster_type=dg.Nothing) for name in ("job_runs", "rollup_hourly")},
    deps=[events], group_name="lake",
)  # fmt: skip
def rollups(context: dg.AssetExecutionContext) -> Any:
    """Update `job_runs`, with a row per message, and `rollup_hourly`, with a row per job and hour."""
    rows = {table["table"]: table["rows"] for table in run(COMPACT, context)}
    for name in ("job_runs", "rollup_hourly"):
        yield dg.Output(None, name, metadata={"rows_written": rows.get(name, 0)})


@dg.asset_check(asset=events)
def lake_is_whole(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Check that each file has its committed rows, and that no event is stored twice."""
    findings = run(CHECK, context, codes=(0, 1))
    bad = [finding["text"] for finding in findings if finding["level"] == "fail"]
    return dg.AssetCheckResult(passed=not bad, metadata={"checked": len(findings), "bad": bad})


@dg.op(out=dg.Out(dg.Nothing))
def expire(context: dg.OpExecutionContext) -> None:
    """Delete old events; both rollup tables keep their rows."""
    context.log.info(str(run(EXPIRE, context)))


@dg.op(ins={"after": dg.In(dg.Nothing)})
def vacuum(context: dg.OpExecutionContext) -> None:
    """Delete replaced and expired files."""
    context.log.info(str(run(VACUUM, context)))


@dg.job
def upkeep() -> None:
    """Delete old events, then the files that stored them."""
    vacuum(expire())


# Without the check `lake_is_whole`, which reads every file.
ingest = dg.define_asset_job("ingest", dg.AssetSelection.assets(events).without_checks())
nightly = dg.define_asset_job("nightly", dg.AssetSelection.all())
defs = dg.Definitions(
    assets=[events, rollups],
    asset_checks=[lake_is_whole],
    jobs=[ingest, nightly, upkeep],
    schedules=[
        dg.ScheduleDefinition(job=ingest, cron_schedule="*/5 * * * *"),
        dg.ScheduleDefinition(job=nightly, cron_schedule="17 3 * * *"),
        dg.ScheduleDefinition(job=upkeep, cron_schedule="17 5 * * 0"),
    ],
)
