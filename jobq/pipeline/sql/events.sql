-- The view `events` of the reports: a message's first run waits since its enqueue, or since its newest revival.
SELECT queue, kind, mid, job, attempt, enqueued_at, started_at, finished_at, run_us, cpu_us, rss_kib, error, fingerprint,
       key, flow, step,
       CASE WHEN {is_first} THEN
         CASE WHEN {revived_at} >= enqueued_at
           THEN coalesce((unix_micros(started_at) - unix_micros({revived_at})) DIV 1000, wait_ms)
           ELSE wait_ms END
         END AS first_wait_ms,
       CASE WHEN {revived_at} >= enqueued_at THEN {revived_at} ELSE enqueued_at END AS arrived_at
FROM {rows}
