"""The session: its settings, and the errors if it can't start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from jobq.errors import ConfigError, PipelineError
from jobq.pipeline import environment
from jobq.pipeline.sessions import cores, session
from tests import tools


def test_session_counts_in_utc_with_arrow(spark):
    assert spark.sql("select sum(id) total from range(10)").toPandas()["total"].tolist() == [45]
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_session_runs_python_on_its_workers(spark):
    assert spark.sparkContext.parallelize([1, 2, 3], 2).map(lambda x: x * 2).collect() == [2, 4, 6]


def test_second_session_is_the_first_told_anew(spark):
    again = session("again", conf={"spark.sql.shuffle.partitions": "3"})
    try:
        assert again is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")


def test_starting_a_session_leaves_the_environment_alone(spark):
    assert not {"SPARK_LOCAL_IP", "PYSPARK_DRIVER_PYTHON"} & set(os.environ)


@pytest.mark.parametrize(
    ("master", "count"),
    [("local", 1), ("local[4]", 4), ("local[2,3]", 2), ("spark://a:7077", None), ("yarn", None)],
)
def test_cores_are_those_of_a_local_master(master, count):
    assert cores(master) == count


def test_session_stays_a_function_when_its_module_is_imported():
    import jobq.pipeline
    import jobq.pipeline.sessions

    assert jobq.pipeline.session is session


def test_cores_of_a_star_are_the_machines():
    assert cores("local[*]") == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "mib"),
    [("1g", 1024), ("1536m", 1536), ("2048", 2048), ("1GB", 1024), ("524288k", 512)],
)
def test_heap_is_read_as_spark_reads_it(text, mib):
    assert environment.checked_heap(text) == f"{mib}m"


@pytest.mark.parametrize(
    ("text", "told"),
    [("400m", "too small"), ("511m", "too small"), ("lots", "not a size"), ("1.5g", "not a size")],
)
def test_heap_is_refused_when_too_small_or_no_size(text, told):
    with pytest.raises(ConfigError, match=told):
        environment.checked_heap(text)


@pytest.mark.parametrize(
    "master",
    ["local", "local[2]", "local[*,3]", "local-cluster[2,1,1024]", "yarn", "spark://a:7077,b:7077", "k8s://https://a"],
)  # fmt: skip
def test_master_is_taken_when_spark_can_read_it(master):
    assert environment.checked_master(master) == master


@pytest.mark.parametrize(
    "master", ["evil[*", "local[0]", "local[two]", "local[2", "spark://a", "spark://", "7077", "a b://c"]
)  # fmt: skip
def test_master_is_refused_when_it_is_malformed(master):
    with pytest.raises(ConfigError, match="is not a Spark master; write it like local"):
        environment.checked_master(master)


@pytest.fixture
def python(tmp_path):
    """python("3.9"): an interpreter that says it is that."""

    def make(version: str) -> str:
        made = tmp_path / "python"
        made.write_text(f"#!/bin/sh\necho {version}\n")
        made.chmod(0o755)
        return str(made)

    return make


def test_python_of_another_version_is_refused(python):
    with pytest.raises(
        ConfigError, match=r"is Python 3\.9, but this process runs 3\.\d+; unset it"
    ):
        environment.check_python(python("3.9"))


def test_python_that_does_not_start_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="doesn't start"):
        environment.check_python(str(tmp_path / "absent"))


def test_python_of_this_version_is_taken():
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert environment.check_python(sys.executable) == f"{here}, {sys.executable}"


def test_spark_home_of_another_version_is_refused(tmp_path):
    (tmp_path / "jars").mkdir()
    with pytest.raises(ConfigError, match="has no Spark"):
        environment.check_spark_home(str(tmp_path))
    (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    with pytest.raises(
        ConfigError, match=r"has Spark 3\.5, but PySpark here is .*; unset SPARK_HOME"
    ):
        environment.check_spark_home(str(tmp_path))


def test_spark_home_of_this_version_is_taken():
    pyspark = tools.library("pyspark")
    assert environment.check_spark_home(os.path.dirname(pyspark.__file__)).startswith("Spark 4.")


START = """
from jobq.errors import JobqError
from jobq.pipeline import session
try:
    session()
except JobqError as error:
    print(type(error).__name__, error)
"""


def started(**variables: str) -> str:
    """Return the output of a separate process whose session can't start."""
    done = subprocess.run(
        [sys.executable, "-c", START], env={**os.environ, **variables},
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    return done.stdout


def test_session_tells_the_last_words_of_a_jvm_that_does_not_start(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.1"\n')
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\necho no room for the heap >&2\nexit 1\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    said = started(JAVA_HOME=str(tmp_path))
    assert said.startswith(f"{PipelineError.__name__} Spark's JVM didn't start: ")
    assert "no room for the heap" in said


def test_session_refuses_a_heap_before_it_starts_java():
    said = started(JOBQ_SPARK_MEMORY="300m", JAVA_HOME="/nowhere", PATH="")
    assert said.startswith(
        "ConfigError memory='300m' is too small for Spark; it must be at least 512m"
    )


def test_session_refuses_a_master_before_it_starts_java():
    said = started(JOBQ_SPARK_MASTER="evil[*", JAVA_HOME="/nowhere", PATH="")
    assert said.startswith(
        "ConfigError master='evil[*' is not a Spark master; write it like local[2]"
    )


def test_session_tells_what_spark_says_of_a_master_that_it_does_not_know():
    said = started(JOBQ_SPARK_MASTER="other://nowhere")
    assert said.startswith("PipelineError Spark doesn't start with master='other://nowhere': ")
    assert "org.apache.spark.SparkException" in said and len(said.splitlines()) == 1


def test_session_refuses_a_python_before_it_starts_java(python):
    said = started(PYSPARK_PYTHON=python("3.9"))
    assert "ConfigError PYSPARK_PYTHON=" in said
