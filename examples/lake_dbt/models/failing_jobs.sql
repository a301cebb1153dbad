-- Share of dead messages per job, over all days.
SELECT queue,
       job,
       sum(messages) AS messages,
       sum(dead) AS dead,
       sum(dead) / sum(messages) AS share
FROM {{ ref('job_days') }}
GROUP BY ALL
HAVING sum(dead) > 0
ORDER BY share DESC, queue, job
