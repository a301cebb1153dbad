-- How long attempts run, whatever their outcome, by queue and job.
WITH runs AS (
  SELECT queue, job, count(*) AS attempts, max(run_us) AS max_us, sum(run_us) AS total_us,
         kll_sketch_agg_bigint(run_us, 2000) AS sketch
  FROM events
  WHERE run_us IS NOT NULL
  GROUP BY queue, job
)
SELECT queue, job, attempts,
       kll_sketch_get_quantile_bigint(sketch, 0.5D) AS p50_us,
       kll_sketch_get_quantile_bigint(sketch, 0.95D) AS p95_us,
       kll_sketch_get_quantile_bigint(sketch, 0.99D) AS p99_us,
       max_us, total_us
FROM runs
ORDER BY total_us DESC, queue, job
