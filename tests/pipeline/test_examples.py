"""`examples/spark`: the steps of its README are done here."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable

from examples.spark import delta
from examples.spark.cluster import SMALL, cluster
from jobq.pipeline.environment import spark_variables
from tests.pipeline.archive import java_options

from .reading.conftest import events  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "examples" / "spark"


#: The notebook, its enqueued jobs, and the notebook again.
TWICE = """
import runpy, subprocess, sys
from jobq.pipeline import session
session(fast=True)
runpy.run_path(sys.argv[1])
worker = ["-m", "jobq", "worker", "--import", "examples.spark.spark_jobs", "--queues", "mail", "--burst=ready"]
subprocess.run([sys.executable, *worker], check=True, stderr=subprocess.DEVNULL)
print("again")
runpy.run_path(sys.argv[1])
"""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_notebook_enqueues_once_however_often_it_runs(valkey_client, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", TWICE, str(HERE / "notebook.py")], cwd=tmp_path,
        env={**os.environ, "JOBQ_URL": valkey_client.url, "JOBQ_SPARK_MASTER": "local[2]",
             "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    first, again = done.stdout.split("again\n")
    assert "late carts: 48" in first
    assert re.search(r"\| *mail\| *48\| *0\| *0\| *0\|", first)
    assert "48 of 48 rows were skipped" in done.stderr
    # The four that failed are ready again once their backoffs end.
    assert re.search(r"\| *mail\| *[0-4]\| *0\| *44\| *0\|", again)
    assert re.search(r"\|shop\.remind\| *done\| *44\|", again)
    assert "LookupError" in again


#: The second batch is in the table, and Spark doesn't know it yet.
KILLED = """
import os, signal, sys
from examples.spark import delta
from jobq.pipeline import session
write = delta.write_deltalake
def dying(table, *args, **words):
    write(table, *args, **words)
    if delta.DeltaTable(table).version() == 1:
        os.killpg(0, signal.SIGKILL)
delta.write_deltalake = dying
events = session(master="local[2]", memory="512m", fast=True).readStream.format("jobq")
delta.keep(events.option("maxRowsPerTrigger", 40).load(), *sys.argv[1:])
"""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_stream_into_a_delta_table_has_each_event_once_when_killed_between_two_commits(
    spark,
    valkey_client,
    tmp_path,
    events,  # noqa: F811
):
    table, checkpoint = str(tmp_path / "events"), str(tmp_path / "checkpoint")
    events("low", 90)
    events("high", 30)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, table, checkpoint],
        env={**os.environ, "JOBQ_URL": valkey_client.url, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, start_new_session=True,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    assert DeltaTable(table).to_pyarrow_table().num_rows == 80
    assert len(list(Path(checkpoint, "commits").glob("[0-9]*"))) == 1
    events("low", 25, start=90)
    source = spark.readStream.format("jobq").option("url", valkey_client.url)
    delta.keep(source.load(), table, checkpoint)
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    found = {(row["queue"], row["entry_at"], row["entry_seq"]) for row in rows}
    assert len(rows) == len(found) == 145


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_submitted_program_runs_on_a_cluster_of_two_workers(
    valkey_client, valkey_queue, monkeypatch
):
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    small = java_options()
    monkeypatch.setitem(SMALL, "SPARK_DAEMON_JAVA_OPTS", small)
    with cluster(workers=2, memory="600m") as master:
        done = subprocess.run(
            [
                submit, "--master", master, "--executor-memory", "512m", "--driver-memory", "512m",
                "--driver-java-options", small, "--conf", f"spark.executor.extraJavaOptions={small}",
                "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false",
                str(HERE / "submit.py"), "mail", "1000",
            ],
            env={**os.environ, **spark_variables(), "JOBQ_URL": valkey_client.url},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "mail: 1000 ready, 0 dead" in done.stdout


def test_crontab_has_commands_that_jobq_understands(parsed):
    lines = (HERE / "crontab").read_text().splitlines()
    jobs = [line.split(None, 5)[5] for line in lines if re.match(r"[*\d]", line)]
    commands = [part for job in jobs for part in job.split(" && ")]
    assert len(commands) == 5
    for command in commands:
        parsed(shlex.split(command)[1:])
