"""`jobq report` on a lake: every format, and its errors."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake

from jobq.cli import main
from jobq.errors import PipelineError
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.tables import to_lake
from jobq.pipeline.report.registry import NAMES
from jobq.pipeline.schema import EVENT_COLUMNS, events_schema
from jobq.queue.types import Ending
from tests.pipeline.report.rows import at, event, recovered

RANGE = ("--since", "2026-11-20T12:00Z", "--until", "2026-11-20T13:00Z")
JOBS = "=cmd|'/C calc'!A0<script>"


class Ended(NamedTuple):
    """The result of a command line."""

    code: int
    out: str
    err: str


def filled(lake: Lake, events: list[tuple[Any, ...]]) -> None:
    """Put events into a lake."""
    columns = list(zip(*events, strict=True))
    arrays = {
        column.name: pa.array(values, events_schema().field(column.name).type)
        for column, values in zip(EVENT_COLUMNS, columns, strict=True)
    }
    batch = pa.RecordBatch.from_pydict(arrays, schema=events_schema())
    table = to_lake(batch)
    days = pa.array([moment.date() for moment in batch["finished_at"].to_pylist()], pa.date32())
    table = table if "dt" in table.column_names else table.append_column("dt", days)
    lake.made("events")
    write_deltalake(lake.below("events").uri, table, mode="append")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A lake with an hour of events and two marks."""
    path = tmp_path_factory.mktemp("history") / "lake"
    made = Lake.create(str(path))
    events = [event(end=10 + n, run=1 + n % 5, mid=f"m{n}", entry_seq=n) for n in range(60)]
    events += [event(end=1800 + n, run=11 + n % 5, mid=f"n{n}", entry_seq=n) for n in range(60)]
    events += [
        event("dead", job=JOBS, queue="mail", error="OSError", fingerprint="f", end=99),
        recovered(end=88),
    ]
    filled(made, events)
    marks = pa.table(
        {"name": ["v1", "v2"], "at": pa.array([at(-9999), at(1000)], pa.timestamp("us", "UTC"))}
    )
    made.made("marks")
    days = pa.array([moment.as_py().date() for moment in marks["at"]], pa.date32())
    write_deltalake(made.below("marks").uri, marks.append_column("dt", days), mode="append")
    return str(path)


@pytest.fixture
def report(lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """report("queue-time", "--format", "json"): one command line on that lake and hour."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JOBQ_LAKE", lake)

    def run(*args: str) -> Ended:
        given = (*RANGE, *args) if "--since" not in args else args
        with CliRunner().isolation() as (out, err, _):
            code = main(["report", *given])
        return Ended(code, out.getvalue().decode(), err.getvalue().decode())

    return run


def test_table_shows_figures_for_people(report):
    ended = report("run-time", "--queues", "low")
    assert ended.code == 0, ended.err
    heading, line = ended.out.splitlines()
    assert heading.split()[:3] == ["queue", "job", "attempts"]
    assert line.split()[:4] == ["low", "app.send", "120", "5"] and "16 m" in line


def test_small_lake_is_answered_without_a_jvm_unless_spark_is_asked_for(
    report, lake, tmp_path, monkeypatch
):
    tried = []

    def refused(*_: Any, **__: Any) -> None:
        tried.append("spark")
        raise PipelineError("no JVM today")

    monkeypatch.setattr("jobq.pipeline.sessions.session", refused)
    for args in ((), ("--engine", "local"), ("--compare", "previous")):
        assert report("all", "--html", *args).code == 0
    assert not tried
    assert "no JVM today" in report("run-time", "--engine", "spark").err
    monkeypatch.setattr("jobq.pipeline.report.sources.SPARK_ROWS", 122)
    assert "no JVM today" in report("run-time").err
    assert report("run-time", "--engine", "local").code == 0
    monkeypatch.setattr("jobq.pipeline.report.sources.SPARK_ROWS", 123)
    assert report("run-time").code == 0
    monkeypatch.setattr("jobq.pipeline.report.sources.find_spec", lambda name: None)
    assert "no JVM today" in report("run-time").err
    assert len(tried) == 3


def test_spark_writes_the_same_page(report, kept_spark, tmp_path):
    """The command's own way to Spark: session, source and views."""
    tables = [
        report("cost", "--queues", "low", "--engine", engine) for engine in ("local", "spark")
    ]
    assert [one.code for one in tables] == [0, 0], tables[1].err
    assert tables[0].out == tables[1].out


def test_source_keeps_a_report_to_the_queues_of_one_server(report, tmp_path):
    shared = Lake.create(str(tmp_path / "shared"))
    owners = ("{eu}low", "{us}low", "{eu}high", "low")
    filled(
        shared, [event(queue=name, end=10, mid="m", entry_seq=n) for n, name in enumerate(owners)]
    )
    of_eu = ("--lake", str(tmp_path / "shared"), "--source", "eu", "--json")
    ended = report("run-time", *of_eu)
    assert ended.code == 0, ended.err
    rows = json.loads(ended.out)["rows"]
    assert sorted(row["queue"] for row in rows) == ["{eu}high", "{eu}low"]
    (row,) = json.loads(report("run-time", "--queues", "low", *of_eu).out)["rows"]
    assert row["queue"] == "{eu}low"
    assert json.loads(ended.out)["source"] == "eu"
    assert "leave it out with --live" in report("run-time", "--live", "--source", "eu").err


def test_json_is_one_document_with_raw_values(report):
    told = json.loads(report("errors", "--json").out)
    assert (told["report"], told["since"], told["more"]) == (
        "errors",
        "2026-11-20T12:00:00Z",
        False,
    )
    newest = told["rows"][0]
    assert (newest["error"], newest["jobs"], newest["first_seen"]) == (
        "OSError",
        JOBS,
        "2026-11-20T12:01:39+00:00",
    )


def test_csv_is_no_formula_when_a_job_is_called_like_one(report):
    rows = list(csv.DictReader(io.StringIO(report("dead", "--format", "csv").out)))
    assert [row["job"] for row in rows] == ["'" + JOBS]


def test_all_as_a_page_is_written_whole(report, tmp_path):
    ended = report("all", "--html")
    assert ended.code == 0, ended.err
    said = (tmp_path / "jobq-report.html").read_text(encoding="utf-8")
    assert all(f'<section id="{name}"' in said for name in NAMES)
    assert "1 job got slower" in said and said.count("<script") == 1 and said.endswith("</html>\n")
    assert [path.name for path in tmp_path.iterdir()] == ["jobq-report.html"]


def test_regressions_are_around_the_last_mark_in_the_range(report):
    told = json.loads(report("regressions", "--json").out)
    (row,) = told["rows"]
    assert "mark v2" in told["notes"][0]
    assert (row["verdict"], row["before_us"], row["after_us"]) == ("slower", 3_000_000, 13_000_000)


def test_regressions_say_so_when_a_side_has_too_few_runs(report):
    told = json.loads(report("regressions", "--at", "2026-11-20T12:00:20Z", "--json").out)
    assert told["rows"][0]["verdict"] == "not enough data" and told["rows"][0]["low_us"] is None


def test_capacity_simulates_what_was_asked_for(report):
    told = json.loads(
        report(
            "capacity", "--workers", "1,9", "--queues", "low", "--target-wait", "5s", "--json"
        ).out
    )
    # Sixty runs of 13 s, one a second, are too many for nine.
    assert [(row["workers"], row["meets"]) for row in told["rows"]] == [(1, "no"), (9, "no")]
    assert told["rows"][0]["mean_us"] > told["rows"][1]["mean_us"]
    assert "Little's law" in told["notes"][0]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("queue-tme",), 2, "did you mean 'queue-time'"),
        (("queue-time", "--queues", "lwo"), 2, "did you mean 'low'"),
        (("regressions", "--mark", "v3"), 2, "mark 'v3' is unknown"),
        (("regressions", "--mark", "v1"), 2, "mark v1 (2026-11-20T09:13:21Z) isn't between"),
        (("regressions", "--mark", "v1", "--at", "5m"), 2, "use only one"),
        (("regressions", "--mark", "v1", "--live"), 2, "--mark v1 can't be used with --live; use --at"),
        (("queue-time", "--since", "2026-11-20T14:00Z", "--until", "2026-11-20T13:00Z"), 2,
         "must be earlier than --until"),
        (("queue-time", "--since", "2026-11-20T14:00Z", "--until", "2026-11-20T15:00Z"), 1,
         "there are events from 2026-11-20T12:00:10Z"),
        (("queue-time", "--lake", "nowhere"), 1, "is not a lake"),
        (("all", "--format", "csv"), 2, "name one report"),
        (("slo", "--objective", "1"), 2, "--objective 1 is not between 0 and 1"),
        (("capacity", "--weights", "low:2,hihg:1"), 2, "queue 'hihg' is unknown"),
        (("capacity", "--workers", "0-4"), 2, "is invalid; list 1 to 200"),
        (("queue-time", "--zone", "Mars"), 2, "is not a time zone"),
        (("queue-time", "--html", "-o", "no/where.html"), 2, "can't be written"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_report_says_what_is_wrong(report, args, code, said):
    ended = report(*args)
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err, ended.err


def test_report_without_a_lake_says_how_to_name_one(report, monkeypatch):
    monkeypatch.delenv("JOBQ_LAKE")
    ended = report("queue-time")
    assert ended.code == 2 and "--lake" in ended.err


def test_help_of_report_asks_for_a_lake_only_without_live(report):
    assert "[required without --live]" in " ".join(report("--help").out.split())


def test_live_report_reads_the_servers_streams_and_leaves_out_what_is_no_record(
    report, valkey_queue, valkey
):
    valkey_queue.enqueue(b"{}", mid="a")
    (taken,) = valkey_queue.dequeue(1).messages
    valkey_queue.finish([Ending(mid=taken.mid, token=taken.token, outcome="done")])
    bad = "done\x1fm\x1f5\x1fapp.x\x1f1\x1f\x1f10\x1f-1"
    valkey_queue.client.command("XADD", f"{valkey_queue.prefix}events", "*", "1", bad)
    now = datetime.now(UTC)
    ended = report(
        "retries",
        "--live",
        "--url",
        valkey.url,
        "--since",
        "1h",
        "--until",
        (now + timedelta(days=365)).isoformat(),
        "--json",
    )
    assert ended.code == 0, ended.err
    (row,) = json.loads(ended.out)["rows"]
    assert (row["queue"], row["attempts"], row["done"]) == ("low", 1, 1)


def test_a_report_is_compared_with_the_range_before_it(report, tmp_path):
    shared = Lake.create(str(tmp_path / "two"))
    runs = ((10, 2, "a"), (20, 2, "b"), (-3000, 1, "c"), (-2900, 3, "gone"))
    filled(
        shared,
        [
            event(
                end=end,
                run=run,
                mid=mid,
                job="app.gone" if mid == "gone" else "app.send",
                entry_seq=n,
            )
            for n, (end, run, mid) in enumerate(runs)
        ],
    )
    given = ("--lake", str(tmp_path / "two"), "--compare")
    ended = report("run-time", *given, "previous", "--json")
    assert ended.code == 0, ended.err
    told = json.loads(ended.out)
    (row,) = told["rows"]
    assert (row["attempts"], row["p50_us"]) == (2, 2_000_000)
    assert (row["before"]["attempts"], row["before"]["p50_us"]) == (1, 1_000_000)
    assert told["compared"]["since"] == "2026-11-20T11:00:00Z"
    assert told["notes"] == ["Only in the earlier range: low/app.gone."]
    lines = report("run-time", *given, "2026-11-20T11:05Z..2026-11-20T11:15Z").out.splitlines()
    assert "p95 before" in lines[0] and "1 s ↑ 100.0 %" in lines[1]
    assert "The ranges differ in length" in lines[-1]
    alone = report("run-time", *given, "2026-11-01T00:00Z..2026-11-02T00:00Z").out
    assert "p95 before" not in alone and "No data from 2026-11-01" in alone
    for wrong in ("yesterday", "2026-11-02T00:00Z..2026-11-01T00:00Z"):
        assert "--compare" in report("run-time", *given, wrong).err
