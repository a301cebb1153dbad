-- The busiest hour's arrivals and run times, with ten minutes before it to fill the queues: what the simulation
-- and the formulas work on. A first attempt arrives when its message was enqueued or
-- revived, a later one when it was started.
WITH arrivals AS (
  SELECT queue, CASE WHEN first_wait_ms IS NULL THEN started_at ELSE least(arrived_at, started_at) END AS arrived_at,
         run_us
  FROM events
  WHERE run_us IS NOT NULL AND started_at IS NOT NULL
),
busiest AS (
  SELECT date_trunc('HOUR', arrived_at) AS hour
  FROM arrivals
  GROUP BY hour
  ORDER BY sum(run_us) DESC, hour
  LIMIT 1
)
SELECT queue, unix_micros(arrived_at) AS arrived_us, run_us, arrived_at >= hour AS counted
FROM arrivals CROSS JOIN busiest
WHERE arrived_at >= hour - INTERVAL 10 MINUTES AND arrived_at < hour + INTERVAL 1 HOUR
ORDER BY arrived_us, queue, run_us
LIMIT :trace_rows
