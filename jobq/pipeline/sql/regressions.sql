-- Runs that were done, by job, before and after a moment: sample sizes, medians, and of each side the two order
-- statistics from which interval.py makes the confidence interval of the medians' difference.
WITH runs AS (
  SELECT job, started_at >= :at AS is_after, run_us
  FROM events
  WHERE kind = 'done' AND run_us IS NOT NULL AND job IS NOT NULL
),
ranked AS (
  SELECT job, is_after, run_us,
         row_number() OVER (PARTITION BY job, is_after ORDER BY run_us) AS place,
         count(*) OVER (PARTITION BY job, is_after) AS n
  FROM runs
),
placed AS (
  SELECT job, is_after, run_us, place, n,
         greatest(1, CAST(round((n + 1) / 2 - sqrt(n)) AS BIGINT)) AS c
  FROM ranked
)
SELECT job,
       count_if(NOT is_after) AS n_before,
       count_if(is_after) AS n_after,
       avg(CASE WHEN NOT is_after AND place IN ((n + 1) DIV 2, (n + 2) DIV 2) THEN run_us END) AS before_us,
       avg(CASE WHEN is_after AND place IN ((n + 1) DIV 2, (n + 2) DIV 2) THEN run_us END) AS after_us,
       max(CASE WHEN NOT is_after AND place = c THEN run_us END) AS before_low,
       max(CASE WHEN NOT is_after AND place = n - c + 1 THEN run_us END) AS before_high,
       max(CASE WHEN is_after AND place = c THEN run_us END) AS after_low,
       max(CASE WHEN is_after AND place = n - c + 1 THEN run_us END) AS after_high
FROM placed
GROUP BY job
ORDER BY job
