-- When work happens: attempts per hour by weekday and hour of the zone asked for. The mean is over the hours
-- of that kind in the range, those without any attempt included; a part of an hour counts as that part.
WITH quarters AS (
  SELECT timestamp_seconds(begins) AS at,
         (unix_micros(least(timestamp_seconds(begins + 900), :until))
          - unix_micros(greatest(timestamp_seconds(begins), :since))) / 3.6e9D AS hours
  FROM (
    SELECT explode(sequence(unix_seconds(:since) DIV 900 * 900, unix_seconds(:until - INTERVAL 1 MICROSECOND), 900L)) AS begins
  )
),
hours AS (
  SELECT weekday(here) AS weekday, hour(here) AS hour, sum(hours) AS hours
  FROM (SELECT from_utc_timestamp(at, :zone) AS here, hours FROM quarters)
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
    UNION ALL
    SELECT from_utc_timestamp(hour, :zone), done + retry + crashed + recovered + dead, retry + crashed + recovered + dead
    FROM rollup_hours
    WHERE done + retry + crashed + recovered + dead > 0
  )
  GROUP BY weekday, hour
)
SELECT weekday, hour, attempts, failed, attempts / hours AS per_hour
FROM ended JOIN hours USING (weekday, hour)
ORDER BY weekday, hour
