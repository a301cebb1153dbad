-- When work happens: attempts per hour by weekday and hour of the zone asked for. The mean is over the hours
-- of that kind in the range, those without any attempt included; a part of an hour counts as one.
WITH hours AS (
  SELECT weekday(here) AS weekday, hour(here) AS hour, count(*) AS hours
  FROM (
    SELECT from_utc_timestamp(at, :zone) AS here
    FROM (SELECT explode(sequence(date_trunc('HOUR', :since), :until - INTERVAL 1 MICROSECOND, INTERVAL 1 HOUR)) AS at)
  )
  GROUP BY weekday, hour
),
ended AS (
  SELECT weekday(here) AS weekday, hour(here) AS hour, sum(attempts) AS attempts, sum(failed) AS failed
  FROM (
    SELECT from_utc_timestamp(date_trunc('MINUTE', finished_at), :zone) AS here, count(*) AS attempts,
           count_if(kind <> 'done') AS failed
    FROM events
    WHERE kind IN ('done', 'retry', 'dead', 'crashed', 'recovered')
    GROUP BY here
  )
  GROUP BY weekday, hour
)
SELECT weekday, hour, attempts, failed, attempts / greatest(1, coalesce(hours, 1)) AS per_hour
FROM ended LEFT JOIN hours USING (weekday, hour)
ORDER BY weekday, hour
