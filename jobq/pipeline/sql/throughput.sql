-- Attempts that ended, by stretch of time and queue; stretches without any are rows of zeros.
WITH ended AS (
  SELECT queue, (unix_seconds(finished_at) - :start_s) DIV :bucket_s AS bucket,
         count_if(kind = 'done') AS done,
         count_if(kind IN ('retry', 'crashed', 'recovered')) AS failed,
         count_if(kind = 'dead') AS dead
  FROM events
  WHERE kind IN ('done', 'retry', 'dead', 'crashed', 'recovered')
  GROUP BY queue, bucket
),
grid AS (
  SELECT queue, bucket
  FROM (SELECT DISTINCT queue FROM ended)
  CROSS JOIN (SELECT explode(sequence(0L, (unix_seconds(:until) - :start_s - 1) DIV :bucket_s)) AS bucket)
)
SELECT timestamp_seconds(:start_s + bucket * :bucket_s) AS at, queue,
       coalesce(done, 0) AS done, coalesce(failed, 0) AS failed, coalesce(dead, 0) AS dead,
       coalesce(done, 0) / :bucket_s AS done_per_s
FROM grid LEFT JOIN ended USING (queue, bucket)
ORDER BY at, queue
