-- Since when enqueues are on record, and when the server's clock was set back: a row per queue of the lake, with its partitions.
-- events: the view `events`.
SELECT
  base_queue AS queue,
  unix_millis(min(entry_at)) AS first_ms,
  unix_millis(min(entry_at) FILTER (WHERE kind = 'enqueued')) AS first_enqueued_ms,
  unix_millis(greatest(max(entry_at), max(finished_at))) AS last_ms,
  collect_list(named_struct('entry_ms', unix_millis(entry_at), 'at_ms', unix_millis(finished_at)))
    FILTER (WHERE kind = 'clock_jump') AS jumps
FROM {events}
GROUP BY base_queue
ORDER BY queue
