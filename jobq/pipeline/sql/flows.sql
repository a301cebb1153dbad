-- How long flows and their steps take, by the flow's name, and which steps decide it. A row without a step is the whole flow.
WITH ends AS (
  SELECT split_part(flow, ':', 1) AS name, flow, step, mid, kind, enqueued_at, started_at, finished_at
  FROM events
  WHERE flow IS NOT NULL AND kind IN ('done', 'dead', 'cancelled', 'expired')
),
-- The timer of a wait is cancelled by its signal, so a cancelled message has not failed.
members AS (
  SELECT name, flow, step, mid, max(kind IN ('dead', 'expired')) AND NOT max(kind = 'done') AS has_failed,
         unix_millis(min(coalesce(enqueued_at, started_at, finished_at))) AS ready_ms,
         unix_millis(max(finished_at)) AS ended_ms
  FROM ends
  GROUP BY name, flow, step, mid
),
steps AS (
  SELECT name, flow, step, count(*) AS members, count_if(has_failed) AS failed, min(ready_ms) AS ready_ms,
         max(ended_ms) AS ended_ms
  FROM members
  GROUP BY name, flow, step
),
-- A step that begins right after another one ended waited for it: the chain leads backwards from the step that ended last.
-- The end of a step is by another clock than the enqueue of the next one.
ended AS (
  SELECT name, flow, min(ready_ms) AS began_ms, max(ended_ms) AS over_ms, sum(members) AS members, sum(failed) AS failed,
         array_sort(collect_list(named_struct('ended_ms', ended_ms, 'ready_ms', ready_ms, 'step', step))) AS ends
  FROM steps
  GROUP BY name, flow
),
chained AS (
  SELECT *, critical_path(ends) AS path FROM ended
),
timed AS (
  SELECT steps.name, steps.flow, steps.step, steps.members, steps.failed, greatest(0L, ended_ms - ready_ms) AS took_ms,
         array_contains(path, steps.step) AS decides, CAST(NULL AS STRING) AS path
  FROM steps JOIN chained ON steps.flow = chained.flow
  UNION ALL
  SELECT name, flow, NULL, members, failed, greatest(0L, over_ms - began_ms), false, array_join(path, ' > ')
  FROM chained
),
-- The most common path is the first of those in the order of their names.
counted AS (
  SELECT *, count(*) OVER (PARTITION BY name, step, path) AS times FROM timed
),
summed AS (
  SELECT name, step, count(*) AS flows, sum(members) AS members, sum(failed) AS failed,
         percentile(took_ms, 0.5D) AS p50_ms, percentile(took_ms, 0.95D) AS p95_ms, max(took_ms) AS max_ms,
         sum(took_ms) AS total_ms, count_if(decides) AS decides, sum(CASE WHEN decides THEN took_ms ELSE 0 END) AS path_ms,
         min_by(path, struct(-times, path)) AS path
  FROM counted
  GROUP BY name, step
),
weighed AS (
  SELECT *, max(CASE WHEN step IS NULL THEN total_ms END) OVER (PARTITION BY name) AS whole_ms FROM summed
)
SELECT name AS flow, step, flows, members, failed, p50_ms, p95_ms, max_ms,
       CASE WHEN step IS NOT NULL THEN try_divide(decides, flows) END AS decides,
       CASE WHEN step IS NOT NULL THEN try_divide(path_ms, whole_ms) END AS share, path
FROM weighed
ORDER BY whole_ms DESC, flow, step IS NOT NULL, share DESC NULLS LAST, step
