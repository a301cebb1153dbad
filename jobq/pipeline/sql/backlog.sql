-- Messages that waited for their first run: the most at any moment of each stretch of time, and those at its end.
-- +1 at an enqueue or a revival, -1 at the first start after it. Enqueues are known from `enqueued` events between the first and the
-- last of a queue's, else from the messages that started in the range: those that never did are not seen.
WITH {stretches},
first_runs AS (
  SELECT queue, mid, least(arrived_at, started_at) AS arrived_at, started_at,
         coalesce(arrived_at > enqueued_at, false) AS is_revived
  FROM events
  WHERE first_wait_ms IS NOT NULL
),
told AS (
  SELECT queue, min(finished_at) AS told_from, max(finished_at) AS told_to
  FROM events
  WHERE kind = 'enqueued'
  GROUP BY queue
),
untold AS (
  SELECT /*+ BROADCAST(told) */ queue, mid, arrived_at, started_at, is_revived
  FROM first_runs LEFT JOIN told USING (queue)
  WHERE told_from IS NULL OR arrived_at < told_from OR (arrived_at > told_to AND NOT is_revived)
),
-- A producer's clock is ahead or behind, and a batch is on its way for a while: whose event is there is told.
edges AS (
  SELECT /*+ BROADCAST(told) */ queue, mid, finished_at
  FROM events JOIN told USING (queue)
  WHERE kind = 'enqueued' AND (finished_at < told_from + INTERVAL 1 HOUR OR finished_at > told_to - INTERVAL 1 HOUR)
),
changes AS (
  SELECT untold.queue, untold.arrived_at AS at, 1 AS enqueued, 0 AS started
  FROM untold ANTI JOIN edges ON edges.queue = untold.queue AND edges.mid = untold.mid
    AND NOT untold.is_revived
    AND edges.finished_at BETWEEN untold.arrived_at - INTERVAL 1 HOUR AND untold.started_at + INTERVAL 1 SECOND
  UNION ALL
  SELECT queue, finished_at, 1, 0 FROM events
  WHERE kind = 'enqueued' AND coalesce(error, 'added') IN ('added', 'requeued')
  UNION ALL
  -- Level `attempts` has revivals, too. A message that the undo of an operation returned may have run before.
  SELECT /*+ BROADCAST(told) */ queue, finished_at, 1, 0
  FROM events JOIN told USING (queue)
  WHERE kind = 'revived' AND coalesce(attempt, 0) = 0 AND finished_at >= told_from
  UNION ALL
  SELECT queue, started_at, 0, 1 FROM first_runs
  UNION ALL
  SELECT /*+ BROADCAST(told) */ queue, finished_at, 0, 1
  FROM events JOIN told USING (queue)
  WHERE kind = 'cancelled' AND coalesce(attempt, 0) = 0 AND finished_at > told_from
),
placed AS (
  SELECT /*+ BROADCAST(slots) */ queue, changes.at, enqueued, started, coalesce(bucket, -1L) AS bucket
  FROM changes LEFT JOIN slots ON slot = CASE WHEN changes.at >= :since
    THEN (unix_seconds(least(changes.at, :until - INTERVAL 1 MICROSECOND)) - :start_s) DIV :unit_s END
),
-- Within each stretch alone, so that executors share a busy queue; changes of one moment count together.
running AS (
  SELECT queue, bucket, enqueued, started,
         sum(enqueued - started) OVER (PARTITION BY queue, bucket ORDER BY at) AS above
  FROM placed
),
by_bucket AS (
  SELECT queue, bucket, sum(enqueued) AS enqueued, sum(started) AS started, max(above) AS above
  FROM running
  GROUP BY queue, bucket
),
grid AS (
  SELECT queue, bucket
  FROM (SELECT DISTINCT queue FROM by_bucket)
  CROSS JOIN (SELECT bucket FROM stretches UNION ALL SELECT -1L)
),
levels AS (
  SELECT queue, bucket, coalesce(enqueued, 0) AS enqueued, coalesce(started, 0) AS started,
         greatest(0, above) AS above,
         sum(coalesce(enqueued, 0) - coalesce(started, 0)) OVER (PARTITION BY queue ORDER BY bucket) AS waiting
  FROM grid LEFT JOIN by_bucket USING (queue, bucket)
)
SELECT at, queue, enqueued, started,
       greatest(0, waiting - enqueued + started + above) AS most, greatest(0, waiting) AS waiting,
       CASE WHEN told_from IS NULL THEN 'started messages' ELSE 'enqueued events' END AS basis
FROM levels JOIN stretches USING (bucket) LEFT JOIN told USING (queue)
ORDER BY at, queue
