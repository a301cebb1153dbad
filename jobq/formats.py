"""Version numbers of the stored formats. docs/operating/upgrades.md lists the numbers that each release can read.

A version number increases when older releases would misread the new data.
"""

from __future__ import annotations

#: Calls in messages: `v` of the envelope.
ENVELOPE = 1
#: Seals of calls, steps and results: `jobq-s1`, `jobq-e1`.
SEAL = 1
#: Records of events: the field of a stream's entry.
EVENTS = 1
#: Lakes: `version` in `_jobq.json`.
LAKE = 1
