"""The SQL of the rollups: over the temporary view `lake_events`, which has the columns of the view events."""

from __future__ import annotations

from jobq.events import KINDS
from jobq.pipeline.lake.tables import ROLLUP_COLUMNS

#: Relative error of a quantile at k = 2000 is below a tenth of a percent of rank.
K = 2000
_KINDS = ",\n  ".join(
    f"count_if(kind = '{c.name}') AS {c.name}" for c in ROLLUP_COLUMNS if c.name in KINDS
)


def _total(column: str) -> str:
    """The sum, 0 without any; at most what a BIGINT holds, for hostile records must not stop a rollup."""
    return f"coalesce(try_sum({column}), CASE WHEN count({column}) = 0 THEN 0L ELSE 9223372036854775807L END)"


HOURLY = f"""
SELECT date_trunc('HOUR', finished_at) AS hour, queue, job,
  count(*) AS nevents,
  {_KINDS},
  count(run_us) AS runs,
  {_total("run_us")} AS run_us,
  {_total("cpu_us")} AS cpu_us,
  coalesce(sum(CAST(bytes AS BIGINT)), 0L) AS bytes,
  max(rss_kib) AS rss_kib,
  CASE WHEN count(run_us) > 0 THEN kll_sketch_agg_bigint(run_us, {K}) END AS run_us_sketch,
  CASE WHEN count(wait_ms) > 0 THEN kll_sketch_agg_bigint(wait_ms, {K}) END AS wait_ms_sketch,
  dt
FROM lake_events
GROUP BY dt, date_trunc('HOUR', finished_at), queue, job
"""  # noqa: S608  # nosec B608

#: How long before an event that tells no enqueue time its message is looked for.
LOOK_BACK_DAYS = 7

#: One event, with the time its message was enqueued: its own, else the newest before it of the message's other
#: events. By mid first: sorting compares the first bytes, and those of a queue's name are mostly the same.
LIVES = """
SELECT * EXCEPT (lives), to_date(coalesce(life_at, finished_at)) AS born FROM (
  SELECT *, coalesce(enqueued_at, array_max(filter(lives, at -> at <= finished_at))) AS life_at FROM (
    SELECT *, collect_set(enqueued_at) OVER (PARTITION BY mid, queue) AS lives
    FROM lake_events WHERE mid IS NOT NULL
  )
)
"""

# The newest event's kind, as a number behind its place in the stream: text would force a sort.
# Kinds that a later jobq adds say nothing of an outcome; they count in nevents alone. Without a known one newest is
# null, for which element_at gives the last name.
_CODES = " ".join(f"WHEN '{kind}' THEN {number}L" for number, kind in enumerate(KINDS))
_NAMES = ", ".join(f"'{kind}'" for kind in KINDS)
_NEWEST = (
    "max(unix_millis(entry_at) * 1048576L + least(CAST(entry_seq AS BIGINT), 65535L) * 16L"
    f" + CASE kind {_CODES} END)"
)

JOB_RUNS_SQL = f"""
WITH runs AS (
  SELECT born, queue, mid, life_at,
    max(xxhash64(job)) FILTER (WHERE job IS NOT NULL) AS job_hash,
    min(finished_at) AS first_event, max(finished_at) AS last_at, min(started_at) AS started_at,
    {_NEWEST} AS newest,
    count_if(kind IN ('done', 'retry', 'dead', 'crashed', 'recovered')) AS attempts,
    count_if(kind = 'retry') AS retries, count_if(kind IN ('crashed', 'recovered')) AS ncrashes,
    count_if(kind = 'done') AS done, {_total("run_us")} AS run_us, {_total("cpu_us")} AS cpu_us,
    max(rss_kib) AS rss_kib,
    count(*) AS nevents
  FROM lake_lives GROUP BY born, queue, mid, life_at
),
jobs AS (SELECT DISTINCT job, xxhash64(job) AS job_hash FROM lake_events WHERE job IS NOT NULL)
SELECT queue, mid, jobs.job, life_at AS enqueued_at, coalesce(life_at, first_event) AS first_at, started_at, last_at,
  CASE WHEN newest IS NOT NULL THEN element_at(array({_NAMES}), CAST(newest % 16L AS INT) + 1) END AS outcome,
  attempts, retries, ncrashes, done,
  CASE WHEN started_at IS NOT NULL AND life_at IS NOT NULL
    THEN greatest(0L, unix_millis(started_at) - unix_millis(life_at)) END AS wait_ms,
  run_us, cpu_us, rss_kib, nevents, born AS dt
FROM runs LEFT JOIN jobs ON runs.job_hash = jobs.job_hash
"""  # noqa: S608  # nosec B608
