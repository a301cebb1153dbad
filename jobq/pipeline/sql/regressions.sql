-- Runs that were done, by job, before and after a moment: sample sizes, medians, and the confidence interval of each
-- side's median by order statistics c and n - c + 1, c = floor((n + 1) / 2 - z sqrt(n) / 2). z is such that the
-- intervals of all jobs with enough runs hold together (Bonferroni), by Abramowitz and Stegun 26.2.23.
-- interval.py makes the interval of the medians' difference of them.
WITH runs AS (
  SELECT job, started_at >= :at AS is_after, run_us
  FROM events
  WHERE kind = 'done' AND run_us IS NOT NULL AND job IS NOT NULL
),
sizes AS (
  SELECT job, count_if(NOT is_after) AS n_before, count_if(is_after) AS n_after
  FROM runs
  GROUP BY job
),
tail AS (
  SELECT sqrt(-2 * ln((1 - :confidence) / 2 / greatest(1, count_if(least(n_before, n_after) >= :least_runs)))) AS t
  FROM sizes
),
deviate AS (
  SELECT t - (2.515517D + 0.802853D * t + 0.010328D * t * t)
           / (1 + 1.432788D * t + 0.189269D * t * t + 0.001308D * t * t * t) AS z
  FROM tail
),
ranked AS (
  SELECT job, is_after, run_us, row_number() OVER (PARTITION BY job, is_after ORDER BY run_us) AS place
  FROM runs
),
placed AS (
  SELECT job, is_after, run_us, place, n_before, n_after, n,
         greatest(1, CAST(floor((n + 1) / 2D - z * sqrt(n) / 2) AS BIGINT)) AS c
  FROM (
    SELECT /*+ BROADCAST(sizes) */ *, CASE WHEN is_after THEN n_after ELSE n_before END AS n
    FROM ranked JOIN sizes USING (job) CROSS JOIN deviate
  )
)
SELECT job, n_before, n_after,
       avg(CASE WHEN NOT is_after AND place IN ((n + 1) DIV 2, (n + 2) DIV 2) THEN run_us END) AS before_us,
       avg(CASE WHEN is_after AND place IN ((n + 1) DIV 2, (n + 2) DIV 2) THEN run_us END) AS after_us,
       max(CASE WHEN NOT is_after AND place = c THEN run_us END) AS before_low,
       max(CASE WHEN NOT is_after AND place = n - c + 1 THEN run_us END) AS before_high,
       max(CASE WHEN is_after AND place = c THEN run_us END) AS after_low,
       max(CASE WHEN is_after AND place = n - c + 1 THEN run_us END) AS after_high
FROM placed
WHERE place IN (c, n - c + 1, (n + 1) DIV 2, (n + 2) DIV 2)
GROUP BY job, n_before, n_after
ORDER BY job
