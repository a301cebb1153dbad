-- Retry amplification: attempts per finished message. A snoozed attempt costs none, so it isn't one.
WITH parts AS (
  SELECT queue, job, count(*) AS attempts,
         count_if(kind = 'done') AS done, count_if(kind = 'dead') AS dead,
         count_if(kind = 'retry') AS retried, count_if(kind IN ('crashed', 'recovered')) AS crashed,
         coalesce(sum(run_us), 0) AS run_us,
         coalesce(sum(CASE WHEN kind <> 'done' THEN run_us END), 0) AS failed_us
  FROM events
  WHERE kind IN ('done', 'retry', 'dead', 'crashed', 'recovered')
  GROUP BY queue, job
  UNION ALL
  SELECT queue, job, done + dead + retry + crashed + recovered, done, dead, retry, crashed + recovered,
         done_us + failed_us, failed_us
  FROM rollup_hours
  WHERE done + dead + retry + crashed + recovered > 0
),
counted AS (
  SELECT queue, job, sum(attempts) AS attempts, sum(done) AS done, sum(dead) AS dead, sum(retried) AS retried,
         sum(crashed) AS crashed, sum(run_us) AS run_us, sum(failed_us) AS failed_us
  FROM parts
  GROUP BY queue, job
)
SELECT queue, job, attempts, done, dead, retried, crashed,
       try_divide(attempts, done + dead) AS amplification,
       (attempts - done) / attempts AS failing,
       try_divide(failed_us, run_us) AS failed_time
FROM counted
ORDER BY amplification DESC NULLS FIRST, attempts DESC, queue, job
