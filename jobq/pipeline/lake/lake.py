"""Open or create a lake, and lock it.

A process that writes to the lake holds an advisory lock on a file in the lake's folder. The lock ends with the process.
A bucket has no lock: two concurrent ingests do the same work, and Delta rejects the second commit of a batch.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import unquote

from jobq import extras
from jobq.config import lake_from_env
from jobq.errors import ConfigError, LakeError, PipelineError
from jobq.formats import LAKE
from jobq.pipeline.lake.store import LakeStore, lake_errors, write_file
from jobq.pipeline.lake.tables import TABLES, LakeTable
from jobq.pipeline.options import unknown

if TYPE_CHECKING:
    from deltalake import DeltaTable

MARKER = "_jobq.json"
#: Commits between checkpoints of a table's log, and how long its log is kept.
_TABLE = {"delta.checkpointInterval": "50", "delta.logRetentionDuration": "interval 30 days"}


@dataclass(frozen=True)
class Lake:
    """The tables in one folder or bucket. A table is created at its first write."""

    store: LakeStore

    @classmethod
    def open(
        cls, path: str | None = None, storage_options: Mapping[str, str] | None = None
    ) -> Lake:
        """Open the lake at `path`, by default JOBQ_LAKE. Raises LakeError if it is missing or has another version."""
        lake = cls(_store_at(path, storage_options))
        if not lake._is_marked():
            raise LakeError(
                f"{lake.store.uri} is not a lake; create it with `jobq lake ingest --lake {lake.store.uri}`"
            )
        return lake

    @classmethod
    def create(
        cls, path: str | None = None, storage_options: Mapping[str, str] | None = None
    ) -> Lake:
        """Open the lake at `path`, or create it in an empty folder or bucket. Raises LakeError if other files exist."""
        lake = cls(_store_at(path, storage_options))
        if not lake._is_marked():
            lake._mark()
        return lake

    def below(self, name: str) -> LakeStore:
        """Return the store of a table."""
        return self.store.below(_table_named(name).name)

    def table(self, name: str) -> DeltaTable | None:
        """Return the table as it is now; None before its first write."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        store = self.below(name)
        with lake_errors(store):
            try:
                delta = DeltaTable(store.uri, storage_options=dict(store.options) or None)
            except TableNotFoundError:
                return None
            except DeltaError:
                check_newest_commit(store)
                raise
            check_newest_commit(store, delta.version())
            return delta

    def made(self, name: str) -> DeltaTable:
        """Return the table; create it if needed, and add missing columns."""
        delta, table = self.table(name), _table_named(name)
        if delta is None:
            return self._make(table)
        from deltalake import Field, Schema

        known = {field.name for field in delta.schema().fields}
        lacking = [c.name for c in table.columns if c.name not in known]
        if lacking:
            fields = {field.name: field for field in Schema.from_arrow(table.delta_schema()).fields}
            with lake_errors(self.below(name)):
                delta.alter.add_columns([Field(name, fields[name].type) for name in lacking])
            delta = self.table(name)
            assert delta is not None
        return delta

    def _make(self, table: LakeTable) -> DeltaTable:
        from deltalake import DeltaTable

        store = self.below(table.name)
        if store.is_local:
            os.makedirs(store.uri, exist_ok=True)
        with lake_errors(store):
            # Two processes may create the table at the same time; the second process opens the existing table.
            DeltaTable.create(
                store.uri, table.delta_schema(), mode="ignore", name=table.name, partition_by=["dt"],
                configuration=_TABLE, storage_options=dict(store.options) or None,
            )  # fmt: skip
        delta = self.table(table.name)
        assert delta is not None
        return delta

    def _is_marked(self) -> bool:
        if self.store.is_local and not os.path.isdir(self.store.uri):
            return False
        from pyarrow.fs import FileType

        with lake_errors(self.store):
            files = self.store.files()
            if files.get_file_info(MARKER).type == FileType.NotFound:
                return False
            with files.open_input_stream(MARKER) as marker:
                text = bytes(marker.read())
        self._check(text)
        return True

    def _check(self, text: bytes) -> None:
        try:
            version = json.loads(text)["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(
                f"{self.store.uri}/{MARKER} holds {text[:80]!r}, which can't be read; restore the file from a backup"
            ) from error
        if version != LAKE:
            raise LakeError(
                f"the lake at {self.store.uri} has version {version}, but this jobq reads {LAKE}; upgrade jobq"
            )

    def _mark(self) -> None:
        from pyarrow.fs import FileSelector

        with lake_errors(self.store):
            if self.store.is_local:
                os.makedirs(self.store.uri, exist_ok=True)
            files = self.store.files()
            others = [
                info.base_name for info in files.get_file_info(FileSelector("", allow_not_found=True))
            ]  # fmt: skip
            if MARKER in others:  # another process created it just now
                return
            if others:
                raise LakeError(
                    f"{self.store.uri} is not a lake and not empty (it has {others[0]}); use an empty folder"
                )
            write_file(self.store, MARKER, json.dumps({"version": LAKE}).encode())


def _store_at(path: str | None, options: Mapping[str, str] | None) -> LakeStore:
    path = path or lake_from_env()
    if not path:
        raise ConfigError("no lake given; use --lake PATH or set JOBQ_LAKE")
    if importable() is not None:
        raise PipelineError(f"the lake needs {importable()}; {extras.install('lake')}")
    if path.startswith("file://"):
        path = unquote(path.removeprefix("file://"))
    if "://" in path:
        return LakeStore(path.rstrip("/"), dict(options or {}))
    folder = os.path.abspath(path)
    if "%" in folder or "\\" in folder:
        raise ConfigError(
            f"a lake can't be at {folder}: deltalake misreads % and \\; use a folder without them"
        )
    return LakeStore(folder, dict(options or {}))


def check_newest_commit(store: LakeStore, version: int | None = None) -> None:
    """Raise LakeError if the newest file of a table's log is damaged. deltalake would accept an empty file as a commit.

    Args:
        version: Version of the newest commit; None if the log can't be read.
    """
    from pyarrow.fs import FileSelector

    files = store.files()
    if version is None:
        infos = files.get_file_info(FileSelector("_delta_log", allow_not_found=True))
        path = max((info.path for info in infos if info.path.endswith(".json")), default="")
    else:
        path = f"_delta_log/{version:020d}.json"
    try:
        with files.open_input_stream(path) as stream:
            content = bytes(stream.read())
    except FileNotFoundError:
        return  # a checkpoint has replaced it
    try:
        is_whole = bool(content) and all(map(json.loads, content.splitlines()))
    except ValueError:
        is_whole = False
    if not is_whole:
        raise LakeError(
            f"the latest commit of the lake's table at {store.uri} is damaged: {path} "
            f"{'is cut off or overwritten' if content else 'is empty'}. Restore that file from a backup; without one, "
            "delete it, then run 'jobq lake check' and 'jobq lake ingest', which reads the remaining events of the "
            "streams again"
        )


def importable() -> str | None:
    """Return the name of a missing package that the lake requires, or None if all are installed."""
    return next((name for name in ("deltalake", "pyarrow") if find_spec(name) is None), None)


def _table_named(name: str) -> LakeTable:
    if name not in TABLES:
        raise ConfigError(unknown("table", name, TABLES))
    return TABLES[name]


LOCK_FILE = "_jobq.lock"
#: Interval at which a waiting process tries the lock, and the pause after a release, in which it can succeed.
LOOK_S = 0.05
PAUSE_S = 2 * LOOK_S
#: Don't follow a symbolic link, because taking the lock empties the file.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class LakeBusyError(LakeError):
    """Another process holds the lake's lock."""


@contextmanager
def locked(
    lake: Lake, *, wait_s: float = 0.0, enough: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Hold the lake's lock.

    Raises LakeBusyError if another process still has the lock after `wait_s` seconds, or once `enough()` returns true.
    """
    if not lake.store.is_local:
        yield
        return
    with lake_errors(lake.store):
        handle = os.open(os.path.join(lake.store.uri, LOCK_FILE), _FLAGS, 0o644)
    try:
        _take_lock(handle, lake, time.monotonic() + wait_s, enough)
        os.truncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(handle)


class RepeatedLock:
    """Holds the lock during each step. Between two steps, other processes can acquire it.

    The first step waits for the lock for `wait_s` seconds and then raises LakeBusyError. Later steps wait without
    limit. If `enough()` returns true during a wait, LakeBusyError is raised immediately.
    """

    def __init__(self, lake: Lake, *, wait_s: float, enough: Callable[[], bool]) -> None:
        self._lake, self._wait_s, self._enough = lake, wait_s, enough

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold the lock for one step. Then pause, so that others can acquire it."""
        with locked(self._lake, wait_s=self._wait_s, enough=self._enough):
            self._wait_s = math.inf
            yield
        if self._lake.store.is_local:
            time.sleep(PAUSE_S)


def _take_lock(handle: int, lake: Lake, deadline: float, enough: Callable[[], bool]) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() >= deadline or enough():
                holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
                raise LakeBusyError(
                    f"another process (pid {holder}) is working on the lake at {lake.store.uri}; "
                    "wait for it, or use --wait"
                ) from error
            time.sleep(LOOK_S)
