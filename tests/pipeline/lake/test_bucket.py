"""A lake in a bucket: made, filled, read by executors, compacted and vacuumed, against moto's S3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobq.cli import main
from jobq.errors import LakeError
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import Lake, inspection, read, rollup, upkeep
from jobq.pipeline.lake.commit import CommitConflictError
from jobq.pipeline.lake.files import live_files
from jobq.pipeline.lake.ingest import Ingest, one_round
from jobq.pipeline.lake.store import remove_files
from jobq.pipeline.lake.upkeep import mark
from jobq.pipeline.report.engines import LocalEngine, SparkEngine
from jobq.pipeline.report.query import ReportQuery
from jobq.pipeline.report.registry import REPORTS
from jobq.pipeline.report.run import answers
from jobq.pipeline.report.sources import from_lake
from jobq.topics import Topic
from tests import tools
from tests.pipeline.lake.conftest import DAY

tools.library("moto")
pyspark_errors = tools.library("pyspark.errors")
DEPLOYED = datetime.fromtimestamp(DAY / 1000 + 60, UTC)
SECRET = "secret-of-the-bucket"
PROGRAM = Path(__file__).with_name("bucket_program.py")
SECRETS_PROGRAM = PROGRAM.with_name("bucket_secrets_program.py")
ROOT = Path(__file__).parents[3]
# A server for S3 is not part of `make test-spark`.
pytestmark = pytest.mark.long
#: One report in the short form.
SOAK = os.environ.get("JOBQ_PIPELINE") == "soak"


@pytest.fixture
def storage() -> Iterator[dict[str, str]]:
    """How to reach the bucket `history` of a server just started."""
    import boto3

    with subprocess.Popen(
        [sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        client = boto3.client(
            "s3", endpoint_url=url, aws_access_key_id="a", aws_secret_access_key=SECRET, region_name="us-east-1",
        )  # fmt: skip
        client.create_bucket(Bucket="history")
        client.close()
        yield {
            "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip
        process.communicate()


def test_lake_in_a_bucket_does_what_one_in_a_folder_does(
    spark, storage, valkey_client, write, monkeypatch
):
    with pytest.raises(LakeError, match="is not a lake"):
        Lake.open("s3://history/jobq", storage)
    lake = Lake.create("s3://history/jobq", storage)
    work, other = (Ingest(lake, valkey_client, Engine("local")) for _ in range(2))
    write("low", 20)
    assert work.events().rows == 20
    assert rollup.refresh(lake, spark) == {"rollup_hourly": 1, "job_runs": 20}
    write("low", 10, first=21, at=DAY + 86_400_000)
    _overtaken(work, other, monkeypatch)
    opened = Lake.open("s3://history/jobq/", storage)
    assert read(spark, opened).count() == 30
    assert read(spark, opened, since="2026-11-22").count() == 10
    assert read(spark, opened, "dead").count() == 0
    write("low", 5, first=31, at=DAY + 86_400_000)
    work.events()
    assert [one.files for one in upkeep.compact(opened)] == [1, 1]
    assert rollup.refresh(opened, spark) == {"rollup_hourly": 1, "job_runs": 15}
    assert read(spark, opened, "job_runs").where("done = 1").count() == 35
    assert SECRET not in str(spark.sparkContext.getConf().getAll())
    assert SECRET not in read(spark, opened)._jdf.queryExecution().toString()
    first = read(spark, opened).orderBy("finished_at").first()
    assert (first["mid"], first["wait_ms"], first["dt"].isoformat()) == ("m1", 30, "2026-11-21")
    assert upkeep.vacuum(opened, 3600)["events"] == 0
    assert all(finding.level == "ok" for finding in inspection.check(opened))
    assert work.events().rows == 0
    with pytest.raises(pyspark_errors.AnalysisException, match="did you mean 'events'"):
        spark.read.format("jobq_lake").option("path", opened.store.uri).option(
            "table", "event"
        ).load()


def _overtaken(slow: Ingest, fast: Ingest, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no lock in a bucket: the second commit of a batch is refused."""
    started = slow._answers

    def meanwhile(*args):
        found = started(*args)
        assert fast.events().rows == 10
        return found

    with monkeypatch.context() as patch:
        patch.setattr(slow, "_answers", meanwhile)
        with pytest.raises(CommitConflictError):
            slow.events()


def test_reports_and_replays_read_a_bucket(spark, storage, valkey, valkey_client, write):
    lake = Lake.create("s3://history/jobq", storage)
    write("low", 20)
    Topic("orders", valkey_client).append_many([b"one", b"two"])
    work = Ingest(lake, valkey_client, Engine("local"))
    assert one_round(work, lambda batch: None, lambda: False)[:2] == (20, 2)
    mark(lake, "v2", DEPLOYED)
    assert dict(upkeep.marks(lake)) == {"v2": DEPLOYED}
    asked = ReportQuery(since=DEPLOYED - timedelta(hours=1), until=DEPLOYED + timedelta(hours=1))
    told = [one for one in REPORTS if one.name == "run-time"]
    [result], seen = answers(SparkEngine(spark), from_lake(spark, lake), told, asked)
    assert answers(LocalEngine(), from_lake(None, lake), told, asked) == ([result], seen)
    assert (seen.events, len(result.rows)) == (20, 1)
    [file] = live_files(lake.table("events"))
    remove_files(lake.below("events"), [file.path])
    with pytest.raises(
        LakeError, match="missing from the lake, such as s3://history/jobq/events/dt="
    ):
        from_lake(spark, lake).between(asked.since, asked.until)
    options = [f"--storage-option={name}={value}" for name, value in storage.items()]
    words = ["lake", "replay", "--lake", lake.store.uri, *options, "--url", valkey.url]
    assert main([*words, "--topic", "orders", "--since", "1h", "--to-topic", "again"]) == 0
    assert [one.content for one in Topic("again", valkey_client).read()] == [b"one", b"two"]


def test_bucket_that_isnt_there_is_told(storage):
    with pytest.raises(LakeError, match="the lake at s3://nowhere/jobq can't be used"):
        Lake.create("s3://nowhere/jobq", storage)


def test_reports_and_compaction_of_a_bucket_show_its_credentials_nowhere(
    storage, valkey_client, write, tmp_path
):
    lake = Lake.create("s3://history/jobq", storage)
    work = Ingest(lake, valkey_client, Engine("local"))
    for half in range(2):
        write("low", 10, first=half * 10 + 1)
        work.events()
    by_option, by_variable = "secret-given-by-option", "secret-given-by-variable"
    logs = tmp_path / "logs"
    logs.mkdir()

    done = subprocess.run(
        [sys.executable, str(SECRETS_PROGRAM), lake.store.uri, str(logs), "all" if SOAK else "run-time"],
        input=json.dumps({**storage, "AWS_SECRET_ACCESS_KEY": by_option}), text=True, capture_output=True,
        env={**os.environ, **storage, "AWS_SECRET_ACCESS_KEY": by_variable, "PYTHONPATH": str(ROOT)}, timeout=800,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3000:]
    shown = (logs / "shown").read_text() + done.stdout + done.stderr
    assert "SparkListenerEnvironmentUpdate" in shown and "spark.app.name" in shown
    assert [secret for secret in (by_option, by_variable) if secret in shown] == []
    assert [one.is_compact for one in live_files(lake.table("events"))] == [True]
