"""A week of made-up history in the shape of the view `events`, for reports to be timed and looked at."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAYS = 7
#: By number of a row: its queue, job, how the attempt ended, when, how long it waited and ran.
_ROWS = """
SELECT id, array('high', 'low', 'mail', 'report', 'sync', 'media', 'index', 'bulk')[CAST(job % 8 AS INT)] AS queue,
       concat('app.', array('resize', 'send', 'crawl', 'bill', 'index')[CAST(job % 5 AS INT)], '_', job) AS job,
       CASE WHEN u < 0.955 THEN 'done' WHEN u < 0.995 THEN 'retry' WHEN u < 0.997 THEN 'crashed'
            ELSE 'dead' END AS kind,
       timestamp_micros(:since_us + CAST((day + pow(v, 0.8)) * 86400e6 AS BIGINT)) AS finished_at,
       CAST(exp(6 + randn(5) * 1.3 + IF(job % 8 = 1 AND day = 5 AND v > 0.5, 4, 0)) AS BIGINT) AS wait_ms,
       CAST(exp(9.5 + job % 7 * 0.4 + randn(7) * 0.6 + IF(job = 11 AND day >= 4, 0.35, 0)) AS BIGINT) AS run_us
FROM (SELECT id, id * 7919 % 40 AS job, id % :days AS day, rand(1) AS u, rand(2) AS v FROM range(0, :rows, 1, 8))
"""
_EVENTS = """
SELECT queue, kind, concat('m', lpad(CAST(id AS STRING), 13, '0')) AS mid, job, IF(kind = 'done' AND id % 25 <> 0, 1, 2)
         AS attempt,
       finished_at - make_dt_interval(0, 0, 0, wait_ms / 1000 + run_us / 1e6) AS enqueued_at,
       finished_at - make_dt_interval(0, 0, 0, run_us / 1e6) AS started_at, finished_at, wait_ms, run_us,
       CAST(run_us * 0.4 AS BIGINT) AS cpu_us, CAST(40000 + id % 900 * 64 AS INT) AS rss_kib,
       CASE WHEN kind <> 'done' THEN array('OSError', 'KeyError', 'TimeoutError')[CAST(id % 3 AS INT)] END AS error,
       CASE WHEN kind <> 'done' THEN lpad(hex(hash(job) % 9999), 16, '0') END AS fingerprint
FROM made
"""


def made(spark: SparkSession, rows: int, since: datetime) -> DataFrame:
    """So many attempts over DAYS days from `since`: one job slower from day 4 on, one queue late on day 5."""
    micros = round(since.timestamp() * 1e6)
    args = {"since_us": micros, "days": DAYS, "rows": rows}
    spark.sql(_ROWS, args).createOrReplaceTempView("made")
    return spark.sql(_EVENTS)


def until(since: datetime) -> datetime:
    """Where it ends."""
    return since + timedelta(days=DAYS)
