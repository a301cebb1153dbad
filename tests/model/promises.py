"""Where each promise is looked at, in every state that the explorer reaches or after every call on the way.

I1-I20 and L1-L6 are those of the reliability specification, section 3.4; I2 and I7 as DESIGN section 3 has them;
K1-K10 are promises of keys, M1 and M2 of messages of flows, P1-P7 of partitions.
A row names the file under tests/ and words of the check there, which a violation prints; a test reads the rows.

I1   one status per mid, that of the model         model/explorer.py: I1 status of
I1   a requeue only behind a run or a dedupe       model/lua/invariants.lua: I1 requeue on a message that waits
I2   one place, at most one copy, notes are true   model/lua/invariants.lua: I2 one copy
I3   no side record without a message              model/lua/invariants.lua: I3 done without message
I4   a lock has a token, and stands in the circle  model/lua/invariants.lua: I4 lock without token
I5   another token changes nothing                 model/working.py: I5 a stale finish changed something
I5   nor does it when it extends                   model/working.py: I5 a stale extend changed something
I5   nor when it releases                          model/working.py: I5 a stale release changed something
I6   never two live locks on one mid               model/expect.py: handed out while
I7   attempts and crashes of this generation       model/expect.py: I7 attempt
I7   dead exactly at the limit, or when said so    model/expect.py: I7 {mid} dead=
I8   what runs is the latest that was accepted     model/expect.py: I8 handed out
I9   accepted is stored                            model/lua/invariants.lua: I8/I9 stored
I9   refused writes nothing                        model/producing.py: I9 a refused enqueue wrote something
I10  not before it is due                          model/expect.py: I10 handed out
I11  a lock as long as asked, never in the past    model/expect.py: I11 lock until
I11  lengths out of range are refused              queue/test_bounds.py: lease
I12  no sentinel in any place                      model/lua/invariants.lua: I12 a stranger
I13  nothing is left after the last one            model/drain.py: I13 it never drains
I13  the dead are whole                            model/lua/invariants.lua: I13 dead without content
I14  counts tells what a look at each mid tells    model/explorer.py: I14 counts tells
I14  the one kept counter is right                 model/lua/invariants.lua: I14 deduped counts
I15  a mid is taken until it is collected          model/producing.py: I15 enqueue of a
I16  the last time never goes back                 model/lua/invariants.lua: I16 the last time went from
I16  one reading of the clock per call             model/lua/runtime.lua: I16 ' .. name
I17  a call made again changes and answers alike   model/working.py: I17 {last.script} again
I18  work of a call is bounded                     model/lua/runtime.lua: I18 ' .. name
I18  and takes its share of what waits, no more    model/working.py: I18 {gone} promoted at once
I19  every key touched is declared                 model/machine.py: I19 {name}
I19  under the one hash tag                        confined.py: key_slot
I20  no batches yet; the counters there are: I14   model/lua/invariants.lua: I14 deduped counts
K1   a key runs its messages that hold a lock       model/lua/invariants.lua: K1 ' .. key
K2   a line holds who names that place, no other   model/lua/invariants.lua: K2 in a line and elsewhere
K3   what waits has its turn, rests, or all run    model/lua/invariants.lua: waits in vain
K4   no more of a key run than may                 model/expect.py: K4 {mid} of
K5   nothing is kept of a key owed nothing         model/lua/invariants.lua: K5 a trace of
K6   none before another that never left the line  model/expect.py: K6 {mid} of
K7   an ordered line starts in order               model/expect.py: K7 {mid} of
K8   what may go comes within a lap of the keys    model/expect.py: K8 {went!r} went
K9   who asks again at once comes to what may go    model/working.py: K9 nothing was handed out
K10  what waits or runs has its content's key      model/explorer.py: K10 {mid}
M1   its flow is told of a member that ends, once  model/expect.py: M1 flows are told
M2   members that haven't ended are counted        model/lua/invariants.lua: M2 members counts
M3   a member of a map is accepted once per flow   model/producing.py: M3 {mid} of a map
S1   the newest report of an attempt is shown       model/explorer.py: S1 {mid} reports
N1   a name has one worker                          model/working.py: N1 {worker} claims
N2   of which the newest entry is kept              model/working.py: N2 the newest entry
R1   a cancelled end is kept as its content says    model/producing.py: R1 a cancel of
R2   or nothing changes, and the caller is told     model/producing.py: R2 a cancel that needs
P1   no mid lives in two partitions                model/partition/explorer.py: P1 {mid} lives in both
P2   an ordered key keeps its order in a change    model/partition/explorer.py: P2 {content} of
P3   what was accepted is run, wherever            model/partition/explorer.py: P3 {w.owed}
P3   a sealed queue rejects new messages           model/partition/explorer.py: P3 the sealed queue took
P6   a lost partition takes nothing, unasked       model/partition/explorer.py: P6 a lost partition took
P7   limits of a key hold in a change             model/partition/explorer.py: P7 {running} of
P4   a queue that isn't sealed costs what it did   queue/test_sealed.py: def test_commands_of_an_unsealed_queue
P5   each tick is taken once, and runs once        model/partition/ticking.py: P5 {content} started twice
P5   and is not lost when its scheduler stops      model/partition/ticking.py: P5 {lost} were taken
L1   one fair worker empties it, from every state  model/drain.py: I13 it never drains
L1   accepted, not superseded: done or dead        model/drain.py: accepted, never run
L2   what waits moves, whatever is ready           queue/test_upkeep.py: def test_
L3   an expired lock is handed out again           model/drain.py: I13 it never drains
L3   and a busy queue looks for one now and then    model/lua/invariants.lua: L3 handed out, and the circle
L4   done is collected                             model/drain.py: I13 it never drains
L5   no lost wake-up, no rest past the next due    model/lua/invariants.lua: L5 resting while a message is ready
L6   a message that kills its workers ends         model/expect.py: I7 {mid} dead=
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Check(NamedTuple):
    """One row of the table."""

    promise: str
    meaning: str
    path: str
    words: str


_ROW = re.compile(r"^([IKLMNPRS]\d+) +(\S.*?) {2,}(\S+): (.+)$", re.MULTILINE)
CHECKS = tuple(Check(*row) for row in _ROW.findall(__doc__))
