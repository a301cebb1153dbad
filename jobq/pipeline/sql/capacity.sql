-- The busiest hour's arrivals and run times, with ten minutes before it to fill the queues: what the simulation
-- and the formulas work on. A first attempt arrives when its message was enqueued or
-- revived, a later one when it was started. observed_us: the part of the hour between the first arrival and the last end of all.
WITH arrivals AS (
  SELECT queue, finished_at, CASE WHEN first_wait_ms IS NULL THEN started_at ELSE least(arrived_at, started_at) END AS arrived_at,
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
),
seen AS (
  SELECT min(arrived_at) AS first_at, max(finished_at) AS last_at FROM arrivals
)
SELECT queue, unix_micros(arrived_at) AS arrived_us, run_us, arrived_at >= hour AS counted,
       unix_micros(least(last_at, hour + INTERVAL 1 HOUR)) - unix_micros(greatest(first_at, hour)) AS observed_us
FROM arrivals CROSS JOIN busiest CROSS JOIN seen
WHERE arrived_at >= hour - INTERVAL 10 MINUTES AND arrived_at < hour + INTERVAL 1 HOUR
ORDER BY arrived_us, queue, run_us
LIMIT :trace_rows
