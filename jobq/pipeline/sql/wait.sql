-- How long messages wait for their first run, by queue and job. A delay asked for counts as waiting.
WITH waits AS (
  SELECT queue, job, count(*) AS messages, max(first_wait_ms) AS max_ms,
         kll_sketch_agg_bigint(first_wait_ms, 2000) AS sketch
  FROM events
  WHERE first_wait_ms IS NOT NULL
  GROUP BY queue, job
)
SELECT queue, job, messages,
       kll_sketch_get_quantile_bigint(sketch, 0.5D) AS p50_ms,
       kll_sketch_get_quantile_bigint(sketch, 0.95D) AS p95_ms,
       kll_sketch_get_quantile_bigint(sketch, 0.99D) AS p99_ms,
       max_ms
FROM waits
ORDER BY p95_ms DESC, queue, job
