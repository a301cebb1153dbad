"""The template for `spark-pipelines`: its README's commands, and the last again after more has happened."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from examples.spark.spark_jobs import remind
from jobq.pipeline.environment import spark_variables
from tests.pipeline.archive import java_options

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "examples" / "spark" / "pipelines" / "README.md"
#: Replacements for a test: packages that are installed, and a server of its own.
ELSEWHERE = ("pip install", "export JOBQ_URL")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_template_adds_only_new_events_when_it_is_run_again(home, valkey_client):
    once, each = commands()
    reminded(range(10), home)
    done(once, ROOT, home)
    history = Path(home["HOME"]) / "history"

    done(each, history, home)
    assert totals(history) == {"events": 10, "runs": 10, "done": 9, "failures": 1}
    first = files(history)

    reminded(range(10, 25), home)
    done(each, history, home)
    assert totals(history) == {"events": 25, "runs": 25, "done": 23, "failures": 2}
    assert first < files(history)
    assert table(history, "events").group_by("mid").aggregate([]).num_rows == 25


def commands() -> list[str]:
    """The README's blocks of commands: done once, and done for each run."""
    blocks = re.findall(r"^```\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    kept = [
        "".join(line for line in block.splitlines(keepends=True) if not line.startswith(ELSEWHERE))
        for block in blocks
    ]
    assert len(kept) == 2
    return kept


@pytest.fixture
def home(valkey_client, tmp_path) -> dict[str, str]:
    """The environment of somebody whose home is empty, with a Java that starts soon."""
    beside = str(Path(sys.executable).parent)
    return {
        **os.environ, **spark_variables(), "HOME": str(tmp_path), "JOBQ_URL": valkey_client.url,
        "PATH": os.pathsep.join((beside, os.environ["PATH"])), "PYTHONPATH": str(ROOT),
        "JDK_JAVA_OPTIONS": java_options(),
    }  # fmt: skip


def done(script: str, folder: Path, environment: dict[str, str]) -> str:
    """Run commands like a shell that stops at the first failed command; its output."""
    ran = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-3000:]
    return ran.stdout


def reminded(customers: range, environment: dict[str, str]) -> None:
    """A job for each of them, run; every tenth, from the ninth, fails once and for all."""
    once = remind.options(retries=0)
    once.enqueue_many([(customer, f"cart-{customer}") for customer in customers])
    worker = ["worker", "--import", "examples.spark.spark_jobs", "--queues", "mail", "--burst"]
    subprocess.run(
        [sys.executable, "-m", "jobq", *worker],
        env=environment, stderr=subprocess.DEVNULL, check=True,
    )  # fmt: skip


def table(history: Path, name: str) -> pa.Table:
    """A table of the pipeline, from its files alone."""
    return ds.dataset(history / "spark-warehouse" / name, format="parquet").to_table()


def totals(history: Path) -> dict[str, int]:
    hourly = table(history, "hourly_runs")
    failed = table(history, "failures").to_pylist()
    assert {row["error"] for row in failed} == {"LookupError"}
    return {
        "events": table(history, "events").num_rows,
        "runs": sum(hourly["runs"].to_pylist()),
        "done": sum(hourly["done"].to_pylist()),
        "failures": sum(row["attempts"] for row in failed),
    }


def files(history: Path) -> set[str]:
    """The files that hold the events."""
    return {path.name for path in (history / "spark-warehouse" / "events").rglob("*.parquet")}
