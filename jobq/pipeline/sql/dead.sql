-- Dead letters by queue, job and error, with the newest three as examples.
WITH deaths AS (
  SELECT queue, job, fingerprint, error, mid, attempt, finished_at,
         row_number() OVER (PARTITION BY queue, job, fingerprint, error ORDER BY finished_at DESC, mid) AS place
  FROM events
  WHERE kind = 'dead'
)
SELECT queue, job, error, count(*) AS messages,
       count(*) / sum(count(*)) OVER () AS share,
       avg(attempt) AS attempts,
       min(finished_at) AS first_seen, max(finished_at) AS last_seen,
       concat_ws(', ', max(CASE WHEN place = 1 THEN mid END), max(CASE WHEN place = 2 THEN mid END),
                 max(CASE WHEN place = 3 THEN mid END)) AS examples,
       fingerprint
FROM deaths
GROUP BY queue, job, fingerprint, error
ORDER BY messages DESC, last_seen DESC, queue, job
