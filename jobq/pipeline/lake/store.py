"""Where a lake's files are: a folder, or an object store that deltalake knows, by the same calls.

A Store is two texts and travels to executors; what it opens stays there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from errno import EDQUOT, EFBIG, ENOSPC
from typing import TYPE_CHECKING, Any

from jobq.errors import LakeError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_FULL = (ENOSPC, EDQUOT, EFBIG)


@dataclass(frozen=True)
class Store:
    """A folder or bucket. options: what deltalake takes as storage_options; AWS_… also come from the environment."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return "://" not in self.uri

    def below(self, name: str) -> Store:
        """The folder `name` in it."""
        return Store(f"{self.uri.rstrip('/')}/{name}", self.options)

    def files(self) -> FileSystem:
        """Its files, by paths relative to it."""
        from pyarrow import fs

        if self.is_local:
            return fs.SubTreeFileSystem(self.uri, fs.LocalFileSystem())
        return _remote(self)

    def settle(self, path: str) -> None:
        """See that a file outlasts a power cut; object stores do so by themselves."""
        if not self.is_local:
            return
        for name in (path, os.path.dirname(path)):
            handle = os.open(os.path.join(self.uri, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _remote(store: Store) -> FileSystem:
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
    """deltalake's output takes bytes and nothing that is like them, which is what pyarrow hands on."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def write(self, data: Any) -> Any:
        return self._raw.write(bytes(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


def write(store: Store, path: str, content: bytes) -> None:
    """Write one file, whole or not at all."""
    files = store.files()
    try:
        with files.open_output_stream(path) as stream:
            stream.write(content)
    except OSError:
        remove(store, [path])
        raise
    store.settle(path)


def remove(store: Store, paths: Iterable[str]) -> None:
    """Delete files that nobody refers to; those that can't be are left to vacuum."""
    files = store.files()
    for path in paths:
        with suppress(OSError):
            files.delete_file(path)


@contextmanager
def told(store: Store, became: str = "") -> Iterator[None]:
    """Errors of files and of deltalake as LakeError: where, what, and what helps.

    became: what has become of the batch; by default, that nothing of it counts.
    """
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (OSError, DeltaError) as error:
        raise LakeError(_message(store, error, became)) from error


def _message(store: Store, error: Exception, became: str) -> str:
    text = " ".join(str(error).split())
    if getattr(error, "errno", None) in _FULL or any(
        f"os error {number}" in text or f"errno {number}]" in text.lower() for number in _FULL
    ):
        became = became or "nothing of this batch was committed"
        return f"no room left for the lake at {store.uri}: {text}; {became}"
    return f"the lake at {store.uri} can't be used: {text}" + (became and f"; {became}")
