-- How long attempts run, whatever their outcome, by queue and job.
-- The largest value of a KLL sketch is exact.
WITH counted AS (
  SELECT queue, job, count(*) AS attempts, max(run_us) AS max_us, sum(run_us) AS total_us,
         kll_sketch_agg_bigint(run_us, 2000) AS sketch
  FROM events
  WHERE run_us IS NOT NULL
  GROUP BY queue, job
  UNION ALL
  SELECT queue, job, runs, kll_sketch_get_quantile_bigint(run_us_sketch, 1D), run_us, run_us_sketch
  FROM rollup_hours
  WHERE runs > 0
),
runs AS (
  SELECT queue, job, sum(attempts) AS attempts, max(max_us) AS max_us, sum(total_us) AS total_us,
         kll_merge_agg_bigint(sketch, 2000) AS sketch
  FROM counted
  GROUP BY queue, job
)
SELECT queue, job, attempts,
       kll_sketch_get_quantile_bigint(sketch, 0.5D) AS p50_us,
       kll_sketch_get_quantile_bigint(sketch, 0.95D) AS p95_us,
       kll_sketch_get_quantile_bigint(sketch, 0.99D) AS p99_us,
       max_us, total_us
FROM runs
ORDER BY total_us DESC, queue, job
