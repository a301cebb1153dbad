"""A lake as a whole: its marker, its tables, opened or made."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from jobq import extras
from jobq.config import lake_from_env
from jobq.errors import ConfigError, LakeError, PipelineError
from jobq.pipeline.lake.store import Store, told, write
from jobq.pipeline.lake.tables import TABLES, Table
from jobq.pipeline.options import unknown

if TYPE_CHECKING:
    from deltalake import DeltaTable

VERSION = 1
MARKER = "_jobq.json"
#: Commits between checkpoints of a table's log, and how long its log is kept.
_TABLE = {"delta.checkpointInterval": "50", "delta.logRetentionDuration": "interval 30 days"}


@dataclass(frozen=True)
class Lake:
    """Tables below one folder or bucket, made when they are first written."""

    store: Store

    @classmethod
    def open(
        cls, path: str | None = None, storage_options: Mapping[str, str] | None = None
    ) -> Lake:
        """The lake there is at `path`, else at JOBQ_LAKE. LakeError for what is none, or of a newer version."""
        lake = cls(_store(path, storage_options))
        if not lake._is_marked():
            raise LakeError(
                f"{lake.store.uri} is no lake; `jobq lake ingest --lake {lake.store.uri}` makes one"
            )
        return lake

    @classmethod
    def create(
        cls, path: str | None = None, storage_options: Mapping[str, str] | None = None
    ) -> Lake:
        """The lake at `path`, made where there is nothing yet. LakeError where something else is."""
        lake = cls(_store(path, storage_options))
        if not lake._is_marked():
            lake._mark()
        return lake

    def below(self, name: str) -> Store:
        """The folder of a table."""
        return self.store.below(_named(name).name)

    def table(self, name: str) -> DeltaTable | None:
        """The table as it is now; None before its first write."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        store = self.below(name)
        with told(store):
            try:
                return DeltaTable(store.uri, storage_options=dict(store.options) or None)
            except TableNotFoundError:
                return None

    def made(self, name: str) -> DeltaTable:
        """The table, made if need be."""
        found = self.table(name)
        if found is None:
            found = self._make(_named(name))
        return found

    def _make(self, table: Table) -> DeltaTable:
        from deltalake import DeltaTable

        store = self.below(table.name)
        if store.is_local:
            os.makedirs(store.uri, exist_ok=True)
        with told(store):
            # Two may make it at the same time: the second takes what the first made.
            DeltaTable.create(
                store.uri, table.delta_schema(), mode="ignore", name=table.name, partition_by=["dt"],
                configuration=_TABLE, storage_options=dict(store.options) or None,
            )  # fmt: skip
        found = self.table(table.name)
        assert found is not None
        return found

    def _is_marked(self) -> bool:
        from pyarrow.fs import FileType

        if self.store.is_local and not os.path.isdir(self.store.uri):
            return False
        with told(self.store):
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
                f"{self.store.uri}/{MARKER} can't be read; it holds {text[:80]!r}"
            ) from error
        if version != VERSION:
            raise LakeError(
                f"the lake at {self.store.uri} has version {version}, and this jobq knows {VERSION}; "
                "upgrade jobq"
            )

    def _mark(self) -> None:
        from pyarrow.fs import FileSelector

        with told(self.store):
            if self.store.is_local:
                os.makedirs(self.store.uri, exist_ok=True)
            files = self.store.files()
            others = [
                one.base_name for one in files.get_file_info(FileSelector("", allow_not_found=True))
            ]
            if MARKER in others:  # somebody made it just now
                return
            if others:
                raise LakeError(
                    f"{self.store.uri} is no lake and not empty (it has {others[0]}); "
                    "give a folder of its own"
                )
            write(self.store, MARKER, json.dumps({"version": VERSION}).encode())


def _store(path: str | None, options: Mapping[str, str] | None) -> Store:
    path = path or lake_from_env()
    if not path:
        raise ConfigError("no lake was named; give --lake PATH or set JOBQ_LAKE")
    if importable() is not None:
        raise PipelineError(f"the lake needs {importable()}; {extras.install('spark')}")
    if path.startswith("file://"):
        path = unquote(path.removeprefix("file://"))
    if "://" in path:
        return Store(path.rstrip("/"), dict(options or {}))
    folder = os.path.abspath(path)
    if "%" in folder or "\\" in folder:
        raise ConfigError(
            f"a lake can't be at {folder}: deltalake takes % and \\ for other characters; "
            "give a folder without"
        )
    return Store(folder, dict(options or {}))


def importable() -> str | None:
    """The package that the lake needs and that isn't installed, if one is missing."""
    from importlib.util import find_spec

    return next((name for name in ("deltalake", "pyarrow") if find_spec(name) is None), None)


def _named(name: str) -> Table:
    if name not in TABLES:
        raise ConfigError(unknown("table", name, TABLES))
    return TABLES[name]
