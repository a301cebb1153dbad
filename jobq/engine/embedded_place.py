"""Where the embedded server of a project keeps its data and its socket."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import NamedTuple

from jobq.engine.trust import project
from jobq.errors import EmbeddedError

FOLDER = ".jobq"
SOCKET_BYTES = 100


class Place(NamedTuple):
    """Files of one embedded server. `socket` is where a new one would listen."""

    data: Path
    socket: Path

    @property
    def lock(self) -> Path:
        """Held while somebody looks for the server, starts it or ends it."""
        return self.data / "lock"

    @property
    def server_lock(self) -> Path:
        """Held by the server as long as it lives."""
        return self.data / "server.lock"

    @property
    def watch_lock(self) -> Path:
        """Held by the watcher as long as it lives."""
        return self.data / "watch.lock"

    @property
    def log(self) -> Path:
        """What the server wrote."""
        return self.data / "server.log"

    @property
    def pid_file(self) -> Path:
        """The pid of the server that was started last, for people."""
        return self.data / "server.pid"

    @property
    def known_socket(self) -> Path:
        """Holds the socket of the server that was started last: others may be told of another runtime folder."""
        return self.data / "socket"


def data_folder(given: str | None, working: Path) -> Path:
    """`given`, else `.jobq` beside the nearest pyproject.toml that is trusted, else in the working folder."""
    if given:
        return Path(given).expanduser().resolve()
    working = working.resolve()
    try:
        found = project(working).found
    except OSError:
        found = None
    return (found.path.parent.resolve() if found else working) / FOLDER


def place(data: Path) -> Place:
    """The place of a data folder; makes nothing."""
    name = hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
    return Place(data, runtime_folder() / f"{name}.sock")


def runtime_folder() -> Path:
    """A folder for sockets: short, since a socket's path has little room, and the user's own."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    if (
        given
        and os.path.isabs(given)
        and len(os.fsencode(given)) < 60
        and os.access(given, os.W_OK)
    ):
        return Path(given, "jobq")
    return Path(tempfile.gettempdir(), f"jobq-{os.getuid()}")


def prepare(place: Place) -> None:
    """Make the folders. EmbeddedError when they can't be, or when others could reach into them."""
    if len(os.fsencode(place.socket)) > SOCKET_BYTES:
        raise EmbeddedError(
            f"{place.socket} is too long for a socket, more than {SOCKET_BYTES} bytes; set XDG_RUNTIME_DIR "
            "to a folder with a shorter path"
        )
    try:
        place.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        ignore = place.data / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
        place.socket.parent.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise EmbeddedError(
            f"no place for the embedded server's data and socket: {error}; set JOBQ_DATA to a folder "
            "that can be written, or JOBQ_URL to a server"
        ) from error
    found = place.socket.parent.lstat()
    private = (
        stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    )
    if not private:
        raise EmbeddedError(
            f"{place.socket.parent} isn't a folder that only you can use; remove it, or set XDG_RUNTIME_DIR"
        )
