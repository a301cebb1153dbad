-- Events with the first snooze of their message, of its life since a revival where there is one.
SELECT *
FROM {rows} LEFT JOIN (
  SELECT {life}, min(finished_at) AS snoozed_at FROM {rows} WHERE kind = 'snoozed' GROUP BY {life}
) USING ({life})
