-- How fast each queue spends its error budget. Objective: this share of messages starts within the target.
-- Burn rate = share that was late / share that may be; over 5 minutes and over 1 hour, at every minute.
WITH minutes AS (
  SELECT queue, unix_seconds(date_trunc('MINUTE', started_at)) AS minute,
         count(*) AS messages, count_if(first_wait_ms > :target_ms) AS late
  FROM events
  WHERE first_wait_ms IS NOT NULL
  GROUP BY queue, minute
),
burning AS (
  SELECT queue, minute, messages, late,
         sum(late) OVER five / sum(messages) OVER five / (1 - :objective) AS burn_5m,
         sum(late) OVER sixty / sum(messages) OVER sixty / (1 - :objective) AS burn_1h
  FROM minutes
  WINDOW five AS (PARTITION BY queue ORDER BY minute RANGE BETWEEN 240 PRECEDING AND CURRENT ROW),
         sixty AS (PARTITION BY queue ORDER BY minute RANGE BETWEEN 3540 PRECEDING AND CURRENT ROW)
)
SELECT queue, sum(messages) AS messages, sum(late) AS late,
       1 - sum(late) / sum(messages) AS within,
       sum(late) / sum(messages) / (1 - :objective) AS burn,
       max_by(burn_5m, minute) AS last_5m, max_by(burn_1h, minute) AS last_1h,
       max(burn_5m) AS worst_5m, max(burn_1h) AS worst_1h,
       timestamp_seconds(min_by(minute, struct(-burn_1h, minute)) FILTER (WHERE burn_1h > 0)) AS worst_at,
       count_if(burn_5m >= :page_burn AND burn_1h >= :page_burn) AS alert_minutes
FROM burning
GROUP BY queue
ORDER BY burn DESC, queue
