-- Runs per hour, queue and job, recomputed in each run.
CREATE MATERIALIZED VIEW hourly_runs AS
SELECT date_trunc('HOUR', finished_at) AS hour, base_queue AS queue, job,
       count(*) AS runs, count_if(kind = 'done') AS done,
       percentile_approx(wait_ms, 0.95) AS wait_p95_ms,
       percentile_approx(run_us, 0.95) AS run_p95_us
FROM events
WHERE run_us IS NOT NULL
GROUP BY ALL
