-- Hours in which a job's p95 run time stood out: modified z-score of the hour among the job's hours.
-- 0.6745 (x - median) / MAD; where more than half of the hours are alike and MAD is 0, the mean absolute deviation
-- serves: (x - median) / (1.253314 MeanAD).
-- Hours are those of the zone.
WITH parts AS (
  SELECT job, timestamp_seconds(unix_seconds(finished_at)
           - pmod(unix_seconds(from_utc_timestamp(finished_at, :zone)), 3600)) AS hour, count(*) AS attempts,
         sketch(run_us, 800) AS ran
  FROM events
  WHERE run_us IS NOT NULL AND job IS NOT NULL
  GROUP BY job, hour
  UNION ALL
  SELECT job, hour, runs, run_us_sketch FROM rollup_hours WHERE runs > 0 AND job IS NOT NULL
),
joined AS (
  SELECT job, hour, sum(attempts) AS attempts,
         merged(ran) AS ran
  FROM parts
  GROUP BY job, hour
  HAVING sum(attempts) >= :min_runs
),
hours AS (
  SELECT job, hour, attempts, quantile(ran, 0.95) AS p95_us FROM joined
),
medians AS (
  SELECT job, percentile(p95_us, 0.5D) AS median_us
  FROM hours
  GROUP BY job
  HAVING count(*) >= :min_hours
),
spreads AS (
  SELECT job, median_us, percentile(abs(p95_us - median_us), 0.5D) AS mad_us,
         avg(abs(p95_us - median_us)) AS mean_ad_us
  FROM hours JOIN medians USING (job)
  GROUP BY job, median_us
),
scored AS (
  SELECT job, hour, attempts, p95_us, median_us,
         CASE WHEN mad_us > 0 THEN 0.6745D * (p95_us - median_us) / mad_us
              ELSE try_divide(p95_us - median_us, 1.253314D * mean_ad_us) END AS score
  FROM hours JOIN spreads USING (job)
)
SELECT hour, job, attempts, p95_us, median_us, p95_us / greatest(median_us, 1) AS times, score
FROM scored
WHERE score > :min_score
ORDER BY score DESC, hour DESC, job
