-- What fails, newest first seen (in the range) first: an error without a fingerprint stands for itself.
WITH seen AS (
  SELECT fingerprint, error, job, count(*) AS attempts, count_if(kind = 'dead') AS dead,
         min(finished_at) AS first_seen, max(finished_at) AS last_seen
  FROM events
  WHERE kind IN ('retry', 'dead', 'crashed', 'recovered')
  GROUP BY fingerprint, error, job
)
SELECT min(first_seen) AS first_seen, max(last_seen) AS last_seen, max_by(error, struct(attempts, error)) AS error,
       sum(attempts) AS attempts, sum(dead) AS dead, array_join(array_sort(collect_set(job)), ', ') AS jobs,
       fingerprint
FROM seen
GROUP BY fingerprint, CASE WHEN fingerprint IS NULL THEN error END
ORDER BY first_seen DESC, attempts DESC, error
