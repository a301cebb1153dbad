"""The lake: Delta tables of what happened, kept when the server has long forgotten it.

::

    from jobq.pipeline import session
    from jobq.pipeline.lake import Lake, read

    lake = Lake.open("./lake")
    read(session(), lake, "events", since="2026-11-01").groupBy("job").count().show()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobq.pipeline.lake.place import Lake
    from jobq.pipeline.lake.reading import read

__all__ = ["Lake", "read"]

if not TYPE_CHECKING:  # a checker would take every misspelt name for Any

    def __getattr__(name: str) -> Any:
        if name == "Lake":
            from jobq.pipeline.lake.place import Lake

            return Lake
        if name == "read":
            from jobq.pipeline.lake.reading import read

            return read
        raise AttributeError(f"module 'jobq.pipeline.lake' has no attribute {name!r}")
