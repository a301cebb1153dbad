-- Since when enqueues are on record: a row per queue of the lake. events: the view `events`.
SELECT
  queue,
  unix_millis(min(entry_at)) AS first_ms,
  unix_millis(min(entry_at) FILTER (WHERE kind = 'enqueued')) AS first_enqueued_ms,
  unix_millis(max(entry_at)) AS last_ms
FROM {events}
GROUP BY queue
ORDER BY queue
