-- How long messages wait for their first run, by queue and job. A delay asked for counts as waiting.
WITH waits AS (
  SELECT queue, job, count(*) AS messages, max(first_wait_ms) AS max_ms,
         sketch(first_wait_ms, 2000) AS waited
  FROM events
  WHERE first_wait_ms IS NOT NULL
  GROUP BY queue, job
)
SELECT queue, job, messages,
       quantile(waited, 0.5) AS p50_ms,
       quantile(waited, 0.95) AS p95_ms,
       quantile(waited, 0.99) AS p99_ms,
       max_ms
FROM waits
ORDER BY p95_ms DESC, queue, job
