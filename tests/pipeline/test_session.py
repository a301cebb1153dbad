"""The session: what it is set to, and what is said when it can't be had."""

from __future__ import annotations


def test_session_counts_in_utc_with_arrow(spark):
    assert spark.sql("select sum(id) total from range(10)").toPandas()["total"].tolist() == [45]
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_session_runs_python_on_its_workers(spark):
    assert spark.sparkContext.parallelize([1, 2, 3], 2).map(lambda x: x * 2).collect() == [2, 4, 6]
