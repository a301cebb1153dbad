"""Writes `docs/reference/states.md` from the table that the tests run: `python docs/make_states.py`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.queue.states import page  # noqa: E402

if __name__ == "__main__":
    (ROOT / "docs" / "reference" / "states.md").write_text(page(), encoding="utf-8")
