-- How late the ticks of schedules start: from when a tick was due to the first start of its message after that.
WITH told AS (
  SELECT queue, job AS schedule, fingerprint AS mid, enqueued_at AS due_at, finished_at AS asked_at, error AS outcome,
         greatest(coalesce(attempt, 0), 0) AS missed
  FROM events
  WHERE kind = 'tick' AND job IS NOT NULL
),
runs AS (
  SELECT queue, mid, started_at FROM events WHERE started_at IS NOT NULL AND mid IS NOT NULL
),
started AS (
  SELECT told.queue, told.schedule, told.asked_at, told.outcome, told.missed,
         -- greatest() ignores nulls.
         CASE WHEN count(runs.started_at) > 0
           THEN greatest(0L, unix_millis(min(runs.started_at)) - unix_millis(told.due_at)) END AS late_ms
  FROM told LEFT JOIN runs
    ON runs.queue = told.queue AND runs.mid = told.mid AND told.outcome IN ('enqueued', 'waits', 'replaced')
    -- The end of a run that was told by another clock's ms may put its start a little before the tick.
    AND runs.started_at >= told.asked_at - INTERVAL 5 MILLISECONDS
  GROUP BY told.queue, told.schedule, told.mid, told.due_at, told.asked_at, told.outcome, told.missed
)
SELECT queue, schedule, count_if(outcome <> 'missed') AS ticks, count(late_ms) AS started,
       count_if(outcome IN ('skipped', 'full')) AS skipped, sum(missed) + count_if(outcome = 'missed') AS missed,
       percentile(late_ms, 0.5D) AS p50_ms, percentile(late_ms, 0.95D) AS p95_ms, percentile(late_ms, 0.99D) AS p99_ms,
       max(late_ms) AS max_ms
FROM started
GROUP BY queue, schedule
ORDER BY missed DESC, p95_ms DESC NULLS FIRST, queue, schedule
