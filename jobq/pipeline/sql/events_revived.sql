-- Events with the newest revival of their message before their run. A later message with the same mid is enqueued after it.
SELECT *, coalesce(latest(revivals, begun_at, ran_at), timestamp_seconds(0)) AS revived_at
FROM (
  SELECT *, coalesce(enqueued_at, finished_at) AS begun_at, coalesce(started_at, finished_at) AS ran_at
  FROM events_chosen
) LEFT JOIN (
  SELECT queue, mid, collect_list(finished_at) AS revivals FROM events_chosen WHERE kind = 'revived' GROUP BY queue, mid
) USING (queue, mid)
