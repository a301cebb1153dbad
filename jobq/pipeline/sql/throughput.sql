-- Attempts that ended, by stretch of time and queue; stretches without any are rows of zeros.
-- Stretches are those of the zone and not all equally long; a slot is the longest time that divides all of them.
WITH stretches AS (
  SELECT bucket, begins, ends, greatest(timestamp_seconds(begins), :since) AS at,
         (unix_micros(least(timestamp_seconds(ends), :until))
          - unix_micros(greatest(timestamp_seconds(begins), :since))) / 1e6D AS length_s
  FROM (
    SELECT CAST(bucket AS BIGINT) AS bucket, CAST(edges[bucket] AS BIGINT) AS begins,
           CAST(edges[bucket + 1] AS BIGINT) AS ends
    FROM (SELECT edges, explode(sequence(0, size(edges) - 2)) AS bucket FROM (SELECT :edges AS edges))
  )
),
slots AS (
  SELECT bucket, explode(sequence((begins - :start_s) DIV :unit_s, (ends - :start_s) DIV :unit_s - 1)) AS slot
  FROM stretches
),
by_slot AS (
  SELECT queue, (unix_seconds(finished_at) - :start_s) DIV :unit_s AS slot,
         count_if(kind = 'done') AS done,
         count_if(kind IN ('retry', 'crashed', 'recovered')) AS failed,
         count_if(kind = 'dead') AS dead
  FROM events
  WHERE kind IN ('done', 'retry', 'dead', 'crashed', 'recovered')
  GROUP BY queue, slot
),
ended AS (
  SELECT queue, bucket, sum(done) AS done, sum(failed) AS failed, sum(dead) AS dead
  FROM by_slot JOIN slots USING (slot)
  GROUP BY queue, bucket
),
grid AS (
  SELECT queue, bucket, at, length_s FROM (SELECT DISTINCT queue FROM ended) CROSS JOIN stretches
)
SELECT at, queue, coalesce(done, 0) AS done, coalesce(failed, 0) AS failed, coalesce(dead, 0) AS dead,
       coalesce(done, 0) / length_s AS done_per_s
FROM grid LEFT JOIN ended USING (queue, bucket)
ORDER BY at, queue
