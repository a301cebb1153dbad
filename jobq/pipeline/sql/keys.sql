-- What each key waits for and costs: the wait for first runs, processor time and time held. Messages without a key are a row.
WITH spent AS (
  SELECT queue, key, count_if(first_wait_ms IS NOT NULL) AS messages, count_if(run_us IS NOT NULL) AS attempts,
         sketch(first_wait_ms, 200) AS waited, max(first_wait_ms) AS max_ms,
         coalesce(sum(cpu_us), 0) AS cpu_us, coalesce(sum(run_us), 0) AS run_us
  FROM events
  WHERE run_us IS NOT NULL
  GROUP BY queue, key
), shared AS (
  SELECT *, try_divide(cpu_us, sum(cpu_us) OVER (PARTITION BY queue)) AS cpu_share,
         try_divide(run_us, sum(run_us) OVER (PARTITION BY queue)) AS run_share,
         count(key) OVER (PARTITION BY queue) AS keys
  FROM spent
)
SELECT queue, key, messages,
       CASE WHEN messages > 0 THEN quantile(waited, 0.5) END AS p50_ms,
       CASE WHEN messages > 0 THEN quantile(waited, 0.95) END AS p95_ms,
       max_ms, attempts, cpu_us, cpu_share, run_us, run_share
FROM shared
WHERE keys > 0
ORDER BY run_us DESC, queue, key
