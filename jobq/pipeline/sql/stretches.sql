-- The intervals of a time line: those of the zone, not all equally long. A slot is the longest time that divides all of
-- them, and finds the interval of a time. The range may cut the first and the last: length_s is what is left of them.
stretches AS (
  SELECT bucket, begins, ends, greatest(timestamp_seconds(begins), :since) AS at,
         (unix_micros(least(timestamp_seconds(ends), :until))
          - unix_micros(greatest(timestamp_seconds(begins), :since))) / 1e6D AS length_s
  FROM (
    SELECT CAST(bucket AS BIGINT) AS bucket, CAST(element_at(edges, bucket + 1) AS BIGINT) AS begins,
           CAST(element_at(edges, bucket + 2) AS BIGINT) AS ends
    FROM (SELECT edges, explode(sequence(0, size(edges) - 2)) AS bucket FROM (SELECT :edges AS edges))
  )
),
slots AS (
  SELECT bucket, explode(sequence((begins - :start_s) DIV :unit_s, (ends - :start_s) DIV :unit_s - 1)) AS slot
  FROM stretches
)
