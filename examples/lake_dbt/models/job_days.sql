-- One row per day, queue and job: the number of messages, their outcomes, and their durations.
SELECT CAST(date_trunc('day', first_at) AS DATE) AS day,
       queue,
       job,
       count(*) AS messages,
       count(*) FILTER (WHERE outcome = 'done') AS done,
       count(*) FILTER (WHERE outcome = 'dead') AS dead,
       sum(retries) AS retries,
       quantile_cont(wait_ms, 0.95) AS wait_p95_ms,
       quantile_cont(run_us, 0.95) / 1000 AS run_p95_ms,
       sum(cpu_us) / 1e6 AS cpu_s
FROM {{ source('lake', 'job_runs') }}
WHERE job IS NOT NULL
GROUP BY ALL
