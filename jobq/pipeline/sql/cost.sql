-- What each job costs: processor time, time held, memory of the largest process that ran it.
WITH parts AS (
  SELECT job, count(*) AS attempts, coalesce(sum(cpu_us), 0) AS cpu_us, coalesce(sum(run_us), 0) AS run_us,
         max(rss_kib) AS peak_kib
  FROM events
  WHERE run_us IS NOT NULL
  GROUP BY job
  UNION ALL
  SELECT job, runs, cpu_us, run_us, rss_kib FROM rollup_hours WHERE runs > 0
),
spent AS (
  SELECT job, sum(attempts) AS attempts, sum(cpu_us) AS cpu_us, sum(run_us) AS run_us, max(peak_kib) AS peak_kib
  FROM parts
  GROUP BY job
)
SELECT job, attempts, cpu_us,
       try_divide(cpu_us, sum(cpu_us) OVER ()) AS cpu_share,
       cpu_us / attempts AS cpu_each_us,
       run_us,
       try_divide(run_us, sum(run_us) OVER ()) AS run_share,
       try_divide(cpu_us, run_us) AS cpu_per_run,
       peak_kib
FROM spent
ORDER BY cpu_us DESC, run_us DESC, job
