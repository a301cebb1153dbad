"""`examples/lake_dbt` and `lake_dagster`: their SQL and their commands, and the whole of both in `make soak`."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from jobq.pipeline.lake import Lake
from jobq.pipeline.lake.files import live_files
from jobq.pipeline.lake.tables import JOB_RUNS
from tests import tools
from tests.pipeline.lake.conftest import rows
from tests.pipeline.test_pipelines_template import done, home, reminded  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
DBT, DAGSTER = (ROOT / "examples" / name for name in ("lake_dbt", "lake_dagster"))
#: Replacements for a test: a server and a lake of its own, and packages in an environment of its own.
ELSEWHERE = ("pip install", "export ")
whole = pytest.mark.skipif(
    os.environ.get("JOBQ_PIPELINE") != "soak", reason="installs Dagster and dbt: part of make soak"
)


def test_models_count_messages_by_day_and_job_when_duckdb_runs_their_sql(tmp_path):
    duckdb = tools.library("duckdb")
    table = str(tmp_path / "job_runs")
    write_deltalake(table, runs(), partition_by=["dt"])
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("job_runs", DeltaTable(table).to_pyarrow_dataset())
        for model in ("job_days", "failing_jobs"):
            sql = (DBT / "models" / f"{model}.sql").read_text()
            # Files that dbt puts there: the view of the source, and the table of the model before.
            sql = re.sub(r"\{\{ (?:source\('lake', |ref\()'(\w+)'\) \}\}", r"\1", sql)
            database.execute(f"CREATE TABLE {model} AS {sql}")
        rounded = "SELECT * REPLACE (round(wait_p95_ms, 2) AS wait_p95_ms) FROM job_days"
        days = database.execute(f"{rounded} ORDER BY day, job").fetchall()
        failing = database.execute("SELECT * FROM failing_jobs").fetchall()
    assert days == [
        (date(2026, 11, 21), "mail", "shop.remind", 20, 18, 2, 2, 18.05, 20.0, 0.2),
        (date(2026, 11, 22), "mail", "shop.remind", 10, 9, 1, 1, 28.55, 20.0, 0.1),
    ]
    assert failing == [("mail", "shop.remind", 30, 3, 0.1)]


def runs() -> pa.Table:
    """Rows of job_runs: 20 of one day, 10 of the next, every tenth dead; and one whose job isn't known."""
    kept = []
    for number in range(30):
        first = datetime(2026, 11, 21 + number // 20, 23, 59, tzinfo=UTC)
        dead = number % 10 == 9
        kept.append({
            "queue": "mail", "mid": f"m{number}", "job": "shop.remind", "first_at": first,
            "dt": first.date(), "outcome": "dead" if dead else "done", "retries": int(dead),
            "wait_ms": number, "run_us": 20_000, "cpu_us": 10_000, "nevents": 1,
        })  # fmt: skip
    kept.append({**kept[0], "mid": "m30", "job": None, "outcome": "cancelled"})
    return pa.Table.from_pylist(kept, schema=JOB_RUNS.delta_schema())


def test_assets_have_commands_that_jobq_understands(parsed):
    named = [
        line.value.value
        for line in ast.parse((DAGSTER / "lake.py").read_text()).body
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
    ]
    assert len(named) == 5
    for command in named:
        program, *words = shlex.split(command)
        assert program == "jobq"
        parsed(words)


@whole
@pytest.mark.timeout(3600)
def test_dbt_builds_its_models_from_a_lake_when_its_readme_is_followed(
    home,  # noqa: F811
    tmp_path,
):
    [block] = commands(DBT)
    reminded(range(30), home)
    beside(home, tmp_path)
    installed("dbt-core<1.12", "dbt-duckdb<1.12", "deltalake", "pyarrow", at=tmp_path, env=home)
    done(f"cp -r {DBT.parents[0]} . && jobq lake ingest --once --rollup 0", tmp_path, home)
    assert "failing_jobs" in done(block, tmp_path, home)
    duckdb = tools.library("duckdb")
    with duckdb.connect(str(tmp_path / "examples" / "lake_dbt" / "models.duckdb")) as database:
        assert database.execute("SELECT sum(messages) FROM job_days").fetchall() == [(30,)]
        found = database.execute("SELECT * FROM failing_jobs").fetchall()
    assert found == [("mail", "shop.remind", 30, 3, 0.1)]


#: Steps that aren't in the README: the last job, each schedule's next run, and the check of a lake that lost a file.
IN_PROCESS = """
import os, sys
import dagster as dg
import lake
assert lake.upkeep.execute_in_process().success
asked = {schedule.job_name: len(schedule.evaluate_tick(dg.build_schedule_context()).run_requests)
         for schedule in lake.defs.schedules}
assert asked == {"ingest": 1, "nightly": 1, "upkeep": 1}, asked
os.unlink(sys.argv[1])
made = dg.materialize([lake.events, lake.lake_is_whole])
[checked] = made.get_asset_check_evaluations()
assert not checked.passed, checked
"""


@whole
@pytest.mark.timeout(3600)
def test_dagster_keeps_a_lake_when_its_readme_is_followed(
    home,  # noqa: F811
    tmp_path,
):
    block, daemon = commands(DAGSTER)
    assert daemon.startswith("dagster schedule start")
    reminded(range(30), home)
    beside(home, tmp_path)
    installed("dagster", at=tmp_path, env=home)
    done(block, ROOT, home)
    lake = Lake.open(home["JOBQ_LAKE"])
    assert len(rows(lake)) == len(rows(lake, "job_runs")) == 30
    [file] = live_files(lake.table("events"))
    lost = os.path.join(home["JOBQ_LAKE"], "events", file.path)
    done(f"python -c {shlex.quote(IN_PROCESS)} {shlex.quote(lost)}", DAGSTER, home)


def commands(folder: Path) -> list[str]:
    """The README's blocks of commands, adapted to the test."""
    text = (folder / "README.md").read_text()
    blocks = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [
        "".join(line for line in block.splitlines(keepends=True) if not line.startswith(ELSEWHERE))
        for block in blocks
    ]


def beside(env: dict[str, str], folder: Path) -> None:
    """Name a lake, a home of Dagster, and an environment before that of jobq on the path."""
    (folder / "dagster").mkdir()
    (folder / "dagster" / "dagster.yaml").touch()
    env.update(
        JOBQ_LAKE=str(folder / "lake"), JOBQ_SPARK_MASTER="local[2]", DAGSTER_HOME=str(folder / "dagster"),
        PATH=os.pathsep.join((str(folder / "venv" / "bin"), env["PATH"])),
    )  # fmt: skip


def installed(*packages: str, at: Path, env: dict[str, str]) -> None:
    """Install packages into an environment of their own; without an index that has them, the test isn't run."""
    subprocess.run([sys.executable, "-m", "venv", str(at / "venv")], check=True)
    install = [str(at / "venv" / "bin" / "python"), "-m", "pip", "install", "-q", *packages]
    got = subprocess.run(install, env=env, capture_output=True, text=True, check=False)
    if got.returncode:
        tools.not_run(f"not run: pip can't install {packages}: {got.stderr[-300:]}", packaged=False)
