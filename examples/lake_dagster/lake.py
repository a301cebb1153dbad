"""A lake kept by Dagster: its tables as assets, a check of its files, and schedules.

dagster dev -f lake.py
"""

import json
import shlex
import subprocess
from typing import Any

import dagster as dg

#: What is run, by the commands of jobq. JOBQ_URL and JOBQ_LAKE say on which server and lake.
INGEST = "jobq lake ingest --once --trim --rollup 0 --wait 4m --json"
COMPACT = "jobq lake compact --wait 30m --json"
CHECK = "jobq lake check --json"
EXPIRE = "jobq lake expire --older-than 90d --yes --wait 30m --json"
VACUUM = "jobq lake vacuum --older-than 7d --wait 30m --json"


def run(command: str, context: Any, codes: tuple[int, ...] = (0,)) -> list[dict[str, Any]]:
    """Run a command of jobq and return its output. Its errors and warnings go into the log of the run."""
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    for line in done.stderr.splitlines():
        context.log.warning(line)
    if done.returncode not in codes:
        raise dg.Failure(f"`{command}` exited with {done.returncode}: {done.stderr[-500:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


@dg.asset(group_name="lake")
def events(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    """Every event of every queue, copied from the server once."""
    [ingested] = run(INGEST, context)
    return dg.MaterializeResult(
        metadata={name: ingested[name] for name in ("events", "topics", "dead", "batches")}
    )


@dg.multi_asset(
    outs={name: dg.AssetOut(dagster_type=dg.Nothing) for name in ("job_runs", "rollup_hourly")},
    deps=[events], group_name="lake",
)  # fmt: skip
def rollups(context: dg.AssetExecutionContext) -> Any:
    """One row per message, and one per hour of a job."""
    rows = {table["table"]: table["rows"] for table in run(COMPACT, context)}
    for name in ("job_runs", "rollup_hourly"):
        yield dg.Output(None, name, metadata={"rows_written": rows.get(name, 0)})


@dg.asset_check(asset=events)
def lake_is_whole(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Check that every file has the committed rows, and that no event is duplicated."""
    findings = run(CHECK, context, codes=(0, 1))
    bad = [finding["text"] for finding in findings if finding["level"] == "fail"]
    return dg.AssetCheckResult(passed=not bad, metadata={"checked": len(findings), "bad": bad})


@dg.op(out=dg.Out(dg.Nothing))
def expire(context: dg.OpExecutionContext) -> None:
    """Drop days of events that nobody needs; both rollups keep theirs."""
    context.log.info(str(run(EXPIRE, context)))


@dg.op(ins={"after": dg.In(dg.Nothing)})
def vacuum(context: dg.OpExecutionContext) -> None:
    """Delete replaced and expired files."""
    context.log.info(str(run(VACUUM, context)))


@dg.job
def upkeep() -> None:
    """Expire old days, then delete their files."""
    vacuum(expire())


# Without its check, which reads every file.
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
