"""One Spark session for all tests that need one, and jobq's client on Valkey alone for those run once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from jobq.cli.app import app
from jobq.client.connection import Client
from jobq.pipeline.sessions import FAST
from jobq.queue.queue import Queue
from tests import tools
from tests.conftest import Server, connected, emptied, serving
from tests.costs import WATCHED
from tests.pipeline.archive import java_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
#: A JVM that starts, or compiles what it runs for the first time, takes its time on a busy machine.
LIMIT_S = 900
#: Most queries of tests run once, on few rows: compiling one costs more than interpreting it. Long forms compile.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
IMPORTS_SPARK = re.compile(
    r"^(?:from|import) pyspark|library\(\"(?:pyspark|pandas|moto)|report\.reference", re.MULTILINE
)
SOAK = "soak" in (os.environ.get("JOBQ_PIPELINE"), os.environ.get("JOBQ_LAKE"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(LIMIT_S))
            if imports_spark(item.path):
                item.add_marker("spark")


@cache
def imports_spark(path: Path) -> bool:
    """Return whether a file of tests needs what `make test-spark` installs, if only for its types."""
    return path.parent.name in ("reading", "writing") or bool(
        IMPORTS_SPARK.search(path.read_text())
    )


@pytest.fixture(scope="session", autouse=True)
def quick_jvms() -> Iterator[None]:
    """Optimized compilation and fresh loading don't pay off in a short-lived JVM: most of its processor time."""
    options = java_options()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LAUNCHER_OPTS", FAST)
        patch.setenv("SPARK_SUBMIT_OPTS", options if SOAK else f"{options} {system_properties()}")
        yield


def system_properties() -> str:
    """The settings of INTERPRETED as Java takes them."""
    return " ".join(f"-D{name}={value}" for name, value in INTERPRETED.items())


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores, quick to start; one per process of pytest."""
    tools.library("pyspark")
    from jobq.pipeline import gateway, session

    folder = tmp_path_factory.mktemp("spark")
    made = session(
        "tests", master="local[2]", memory="1g", fast=True,
        conf={
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
        },
    )  # fmt: skip
    WATCHED.add(made.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
    yield made
    made.stop()
    gateway.end_jvm()


class KeptSession:
    """A session that a command may stop in vain."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        pass


@pytest.fixture
def kept_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> KeptSession:
    """The session, which commands take that run in this process, instead of starting one."""
    kept = KeptSession(spark)
    monkeypatch.setattr("jobq.pipeline.sessions.session", lambda *_, **__: kept)
    return kept


@pytest.fixture(scope="session")
def valkey(servers: dict[str, Server], short_folder: Path) -> Server:
    """The Valkey of this run."""
    return serving("valkey", servers, short_folder)


@pytest.fixture
def valkey_redis(valkey: Server) -> Iterator[Any]:
    """A plain redis-py client on the emptied Valkey."""
    with emptied(valkey) as client:
        yield client


@pytest.fixture
def valkey_client(valkey_redis: Any, valkey: Server) -> Iterator[Client]:
    """jobq's client on the emptied Valkey; the default one as long."""
    with connected(valkey) as client:
        yield client


@pytest.fixture
def valkey_queue(valkey_client: Client) -> Queue:
    """The queue `low` on Valkey."""
    return Queue("low", valkey_client)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    """parsed(["lake", "ingest", "--once"]): refuses what the command line would refuse."""
    monkeypatch.setenv("JOBQ_LAKE", "lake")

    def parse(words: list[str]) -> None:
        context, command = click.Context(app, **app.context_settings), app
        while isinstance(command, click.Group):
            found = command.get_command(context, words.pop(0))
            assert found is not None
            command, context = found, click.Context(found, parent=context)
        command.make_context(command.name, words)

    return parse
