-- The figures per queue. lives: the rows of audit_lives.sql.
SELECT
  queue,
  sum(accepted) AS accepted, sum(finished) AS finished, sum(duplicates) AS duplicates, sum(lost) AS lost,
  sum(open) AS open, sum(superseded) AS superseded, sum(earlier) AS earlier, sum(unrecorded) AS unrecorded,
  sort_array(collect_list(mid) FILTER (WHERE lost > 0)) AS lost_mids
FROM {lives}
GROUP BY queue
ORDER BY queue
