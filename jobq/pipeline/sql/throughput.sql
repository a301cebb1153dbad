-- Attempts that ended, by stretch of time and queue; stretches without any are rows of zeros.
WITH {stretches},
by_slot AS (
  SELECT queue, (unix_seconds(finished_at) - :start_s) DIV :unit_s AS slot,
         count_if(kind = 'done') AS done,
         count_if(kind IN ('retry', 'crashed', 'recovered')) AS failed,
         count_if(kind = 'dead') AS dead
  FROM events
  WHERE kind IN ('done', 'retry', 'dead', 'crashed', 'recovered')
  GROUP BY queue, slot
  UNION ALL
  SELECT queue, (unix_seconds(hour) - :start_s) DIV :unit_s, done, retry + crashed + recovered, dead
  FROM rollup_hours
  WHERE done + retry + crashed + recovered + dead > 0
),
ended AS (
  SELECT queue, bucket, sum(done) AS done, sum(failed) AS failed, sum(dead) AS dead
  FROM by_slot JOIN slots USING (slot)
  GROUP BY queue, bucket
),
grid AS (
  SELECT queue, bucket, at, length_s FROM (SELECT DISTINCT queue FROM ended) CROSS JOIN stretches
)
SELECT at, queue, coalesce(done, 0) AS done, coalesce(failed, 0) AS failed, coalesce(dead, 0) AS dead,
       coalesce(done, 0) / length_s AS done_per_s
FROM grid LEFT JOIN ended USING (queue, bucket)
ORDER BY at, queue
