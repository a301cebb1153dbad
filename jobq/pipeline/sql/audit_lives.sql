-- What became of the messages of each mid: jobq.queue.audit_lives as a fold, a row per queue, partition and mid.
-- events: the view `events`. starts: queue, since_ms. :until_ms: acceptances after it don't count, by the time that
-- an event tells: after a clock was set back, the times of entries run ahead.
--
-- moves: 1 accepted, 2 newer content for after the run, 3 done, 4 dead or expired, 5 cancelled, 6 goes on, 7 runs again,
-- 8 superseded, 9 cleared. Most mids are accepted once and end once, or go on: sums alone judge these. The fold
-- takes the others. In it counted is 1 where the life's acceptance counts, newer the same of the
-- content that waits, -1 without.
WITH told AS (
  SELECT /*+ BROADCAST(s) */
    s.queue, e.queue AS part, e.mid, unix_millis(e.entry_at) * 1048576 + e.entry_seq AS place, s.since_ms,
    CASE
      WHEN kind IN ('enqueued', 'revived') THEN
        CASE coalesce(error, 'added') WHEN 'updated' THEN NULL WHEN 'requeued' THEN 2 ELSE 1 END
      WHEN kind = 'done' THEN 3
      WHEN kind IN ('dead', 'expired') THEN 4
      WHEN kind = 'cancelled' THEN 5
      WHEN kind IN ('retry', 'snoozed') THEN 6
      WHEN kind IN ('crashed', 'recovered') THEN 7
      WHEN kind = 'superseded' THEN 8
      WHEN kind = 'cleared' THEN 9
    END AS move,
    CASE WHEN unix_millis(e.finished_at) <= :until_ms THEN 1 ELSE 0 END AS counted,
    CASE WHEN kind IN ('done', 'dead', 'expired') THEN unix_millis(e.enqueued_at) END AS asked_ms
  FROM {events} e JOIN {starts} s ON e.base_queue = s.queue AND unix_millis(e.entry_at) >= s.since_ms
),
clears AS (
  SELECT /*+ BROADCAST(s) */
    e.queue AS part, collect_list(
      named_struct('place', unix_millis(e.entry_at) * 1048576 + e.entry_seq, 'move', 9, 'counted', 0)) AS clears
  FROM {events} e JOIN {starts} s ON e.base_queue = s.queue AND unix_millis(e.entry_at) >= s.since_ms
  WHERE kind = 'cleared' GROUP BY e.queue
),
mids AS (
  SELECT
    queue, part, mid, max(asked_ms) AS asked_ms, max(since_ms) AS since_ms,
    CAST(sum(counted * if(move = 1, 1, 0)) AS INT) AS counted,
    count_if(move BETWEEN 3 AND 5) AS endings, CAST(count_if(move = 7) AS INT) AS again,
    count_if(move = 1) = 1 AND count_if(move IN (2, 8)) = 0 AND count_if(move BETWEEN 3 AND 5) <= 1
      AND min(place) = min(if(move = 1, place, NULL))
      AND coalesce(max(place) = max(if(move BETWEEN 3 AND 5, place, NULL)), true) AS plain,
    collect_list(named_struct('place', place, 'move', move, 'counted', counted)) AS moves
  FROM told WHERE move < 9 GROUP BY queue, part, mid
),
folded AS (
  SELECT /*+ BROADCAST(c) */
    t.queue, mid, asked_ms, since_ms,
    CASE WHEN plain AND clears IS NULL THEN
      named_struct('open', endings = 0, 'counted', counted, 'newer', -1, 'ended', endings = 1, 'accepted', counted,
        'finished', if(endings = 1, counted, 0), 'duplicates', counted * again, 'lost', 0, 'superseded', 0, 'earlier', 0)
    ELSE
      aggregate(
        array_sort(CASE WHEN clears IS NULL THEN moves ELSE concat(moves, clears) END),
        named_struct('open', false, 'counted', 0, 'newer', -1, 'ended', false, 'accepted', 0, 'finished', 0,
          'duplicates', 0, 'lost', 0, 'superseded', 0, 'earlier', 0),
        (l, m) -> named_struct(
          'open', CASE
            WHEN m.move IN (1, 2) THEN true
            WHEN m.move IN (5, 9) THEN false
            WHEN m.move IN (3, 4, 8) AND l.newer < 0 THEN false
            ELSE l.open END,
          'counted', CASE
            WHEN m.move = 1 OR (m.move = 2 AND NOT l.open) THEN m.counted
            WHEN l.open AND l.newer >= 0 AND m.move IN (3, 4, 6, 7, 8) THEN l.newer
            ELSE l.counted END,
          'newer', CASE
            WHEN m.move = 2 AND l.open THEN m.counted
            WHEN m.move BETWEEN 1 AND 9 AND NOT (l.open AND l.newer < 0) THEN -1
            ELSE l.newer END,
          'ended', l.ended OR m.move = 5 OR (m.move IN (3, 4) AND NOT (l.open AND l.newer >= 0))
            OR (m.move = 8 AND l.open AND l.newer < 0),
          'accepted', l.accepted + CASE WHEN m.move IN (1, 2) THEN m.counted ELSE 0 END,
          'finished', l.finished + CASE
            WHEN l.open AND m.move IN (3, 4, 5) THEN l.counted
            WHEN l.open AND m.move = 9 THEN l.counted + greatest(l.newer, 0)
            ELSE 0 END,
          'duplicates', l.duplicates + CASE
            WHEN NOT l.open AND m.move = 3 AND l.ended THEN 1
            WHEN l.open AND m.move = 7 AND l.newer < 0 THEN l.counted
            ELSE 0 END,
          'lost', l.lost + CASE WHEN l.open AND m.move = 1 THEN l.counted + greatest(l.newer, 0) ELSE 0 END,
          'superseded', l.superseded + CASE
            WHEN l.open AND m.move IN (2, 5) THEN greatest(l.newer, 0)
            WHEN l.open AND (m.move = 8 OR (m.move IN (6, 7) AND l.newer >= 0)) THEN l.counted
            ELSE 0 END,
          'earlier', l.earlier + CASE WHEN NOT l.open AND m.move IN (3, 4, 5) AND NOT l.ended THEN 1 ELSE 0 END
        )
      )
    END AS life
  FROM mids t LEFT JOIN clears c ON t.part = c.part
)
SELECT
  queue, mid, life.accepted, life.finished, life.duplicates, life.lost, life.superseded, life.earlier,
  CASE WHEN life.open THEN life.counted + greatest(life.newer, 0) ELSE 0 END AS open,
  -- Ended here, and its enqueue, within the range by the producer's clock, is on no record.
  CASE WHEN asked_ms >= since_ms + 60000 AND asked_ms <= :until_ms THEN life.earlier ELSE 0 END AS unrecorded
FROM folded
