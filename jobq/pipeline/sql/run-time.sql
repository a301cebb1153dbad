-- How long attempts run, whatever their outcome, by queue and job.
-- The largest value of a KLL sketch is exact.
WITH counted AS (
  SELECT queue, job, count(*) AS attempts, max(run_us) AS max_us, sum(run_us) AS total_us,
         sketch(run_us, 2000) AS ran
  FROM events
  WHERE run_us IS NOT NULL
  GROUP BY queue, job
  UNION ALL
  SELECT queue, job, runs, quantile(run_us_sketch, 1.0), run_us, run_us_sketch
  FROM rollup_hours
  WHERE runs > 0
),
runs AS (
  SELECT queue, job, sum(attempts) AS attempts, max(max_us) AS max_us, sum(total_us) AS total_us,
         merged(ran) AS ran
  FROM counted
  GROUP BY queue, job
)
SELECT queue, job, attempts,
       quantile(ran, 0.5) AS p50_us,
       quantile(ran, 0.95) AS p95_us,
       quantile(ran, 0.99) AS p99_us,
       max_us, total_us
FROM runs
ORDER BY total_us DESC, queue, job
