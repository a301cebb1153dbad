"""The place of a lake's files: a folder, or an object store that deltalake supports.

A LakeStore is plain data that can be sent to executors. Importing this module loads neither pyarrow nor deltalake.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from jobq.errors import LakeError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

#: Escape codes of terminals, and other control characters except white space.
_CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0e-\x1f\x7f-\x9f]")
_FULL = (ENOSPC, EDQUOT, EFBIG)


@dataclass(frozen=True)
class LakeStore:
    """A folder or bucket.

    Attributes:
        options: deltalake's storage_options, in addition to AWS_… variables of the environment.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_local(self) -> bool:
        """Return whether the store is a folder on this machine."""
        return "://" not in self.uri

    def below(self, name: str) -> LakeStore:
        """Return the store of a subfolder."""
        return LakeStore(f"{self.uri.rstrip('/')}/{name}", self.options)

    def files(self) -> FileSystem:
        """Return the store's file system; paths are relative to the store."""
        from pyarrow import fs

        if self.is_local:
            return fs.SubTreeFileSystem(self.uri, fs.LocalFileSystem())
        return _remote(self)

    def settle(self, path: str) -> None:
        """Sync a file and its folders to disk. Object stores do this on their own."""
        if not self.is_local:
            return
        for name in (path, *map(str, PurePath(path).parents)):
            handle = os.open(os.path.join(self.uri, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _remote(store: LakeStore) -> FileSystem:
    import pyarrow as pa
    from deltalake.fs import DeltaStorageHandler
    from pyarrow import fs

    class Handler(DeltaStorageHandler):
        def open_output_stream(self, path: str, metadata: Any = None) -> pa.PythonFile:
            raw: Any = _Bytes(self._handler.open_output_stream(path, metadata))
            return pa.PythonFile(raw, mode="w")

    handler: Any = Handler(store.uri, options=dict(store.options))
    return fs.PyFileSystem(handler)


class _Bytes:
    """A stream for deltalake that also accepts pyarrow's buffers, because deltalake's own stream accepts only bytes."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def write(self, data: Any) -> Any:
        return self._raw.write(bytes(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


def write_file(store: LakeStore, path: str, content: bytes) -> None:
    """Write a file. If the write fails, delete the incomplete file."""
    files = store.files()
    if store.is_local:
        os.makedirs(os.path.join(store.uri, os.path.dirname(path)), exist_ok=True)
    try:
        with files.open_output_stream(path) as stream:
            stream.write(content)
    except OSError:
        remove_files(store, [path])
        raise
    store.settle(path)


def remove_files(store: LakeStore, paths: Iterable[str]) -> None:
    """Delete uncommitted files. Errors are ignored, because vacuum deletes the remaining files later."""
    files = store.files()
    for path in paths:
        with suppress(OSError):
            files.delete_file(path)


@contextmanager
def lake_errors(store: LakeStore, became: str = "") -> Iterator[None]:
    """Convert OSError and deltalake's errors to LakeError, with the lake's address.

    Args:
        became: Outcome of the batch, for the error message. If empty, an error for a full disk says 'this batch was not
            committed'.
    """
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (OSError, DeltaError) as error:
        raise LakeError(_described(store, error, became)) from error


def _described(store: LakeStore, error: Exception, became: str) -> str:
    # Some stores' clients colour their texts.
    text = " ".join(_CODES.sub("", str(error)).split())
    if is_disk_full(error):
        became = became or "this batch was not committed"
        return f"no room left for the lake at {store.uri}: {text}; {became}"
    return f"the lake at {store.uri} can't be used: {text}" + (became and f"; {became}")


def is_disk_full(error: Exception) -> bool:
    """Return whether a write failed because the disk or a quota is full, or the file is too large.

    Errors of deltalake and pyarrow often have the error number only in their text.
    """
    text = str(error).lower()
    in_text = any(f"os error {number}" in text or f"errno {number}]" in text for number in _FULL)
    return in_text or getattr(error, "errno", None) in _FULL
