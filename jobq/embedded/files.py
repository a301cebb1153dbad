"""The files of a project's embedded server: data, socket and locks, and checks of who may access them."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jobq.errors import EmbeddedError
from jobq.trust import project, user_name

FOLDER = ".jobq"
SOCKET_BYTES = 100
_NAMES = {
    ".gitignore", "lock", "server.lock", "watch.lock", "server.log", "server.pid", "socket", "program",
    "appendonlydir", "dump.rdb",
}  # fmt: skip
logger = logging.getLogger("jobq.server")


class ServerFiles(NamedTuple):
    """The files of one embedded server. `socket` is the path at which a new server would listen."""

    data: Path
    socket: Path

    @property
    def lock(self) -> Path:
        """Return the path of the lock for finding, starting and stopping the server."""
        return self.data / "lock"

    @property
    def server_lock(self) -> Path:
        return self.data / "server.lock"

    @property
    def watch_lock(self) -> Path:
        return self.data / "watch.lock"

    @property
    def log(self) -> Path:
        """The server's log."""
        return self.data / "server.log"

    @property
    def pid_file(self) -> Path:
        """Return the path of a file with the last server's pid, for people to read."""
        return self.data / "server.pid"

    @property
    def known_socket(self) -> Path:
        """Return the path of a file that names the last server's socket.

        Processes may use different folders for sockets.
        """
        return self.data / "socket"

    @property
    def known_program(self) -> Path:
        """Return the path of a file that names the last started server program."""
        return self.data / "program"


def data_folder(given: str | None, working: Path) -> Path:
    """Return `given`, or `.jobq` next to the nearest trusted pyproject.toml, or `.jobq` in the working folder.

    Links in the path are followed. The folder itself must not be a link, because another user could have made the link.
    """
    if given:
        path = Path(os.path.abspath(Path(given).expanduser()))
        return path.parent.resolve() / path.name
    working = working.resolve()
    try:
        nearest = project(working).project
    except OSError:
        nearest = None
    return (nearest.path.parent.resolve() if nearest else working) / FOLDER


def files_of(data: Path) -> ServerFiles:
    """Return the server's paths for a data folder, without creating files."""
    name = hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
    return ServerFiles(data, runtime_folder() / f"{name}.sock")


def runtime_folder() -> Path:
    """Return the user's folder for sockets. Its path is short, because socket paths have a maximum length."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given and os.path.isabs(given) and len(os.fsencode(given)) < 60 and _is_runtime(given):
        return Path(given, "jobq")
    try:
        temporary = tempfile.gettempdir()
    except OSError as error:
        raise EmbeddedError(
            f"can't find a folder for the embedded server's socket: {error.strerror}; set XDG_RUNTIME_DIR or TMPDIR to "
            "a writable folder, or JOBQ_URL to a server"
        ) from error
    return Path(temporary, f"jobq-{os.geteuid()}")


def _is_runtime(folder: str) -> bool:
    """Return whether the folder belongs to this user.

    After `su`, its owner may be another user, who could replace its files.
    """
    try:
        status = os.stat(folder)
    except OSError:
        return False
    yours = status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return yours and os.access(folder, os.W_OK)


def prepare(files: ServerFiles) -> None:
    """Create the folders. Raises EmbeddedError if that fails, or if other users could access the folders."""
    if len(os.fsencode(files.socket)) > SOCKET_BYTES:
        raise EmbeddedError(
            f"the path of the socket {files.socket} has more than {SOCKET_BYTES} bytes; set XDG_RUNTIME_DIR "
            "to a folder with a shorter path"
        )
    try:
        files.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_private(files.data)
        check(files)
        files.socket.parent.mkdir(mode=0o700, exist_ok=True)
        ignore = files.data / ".gitignore"
        if not ignore.exists():
            write(ignore, b"*\n")
    except OSError as error:
        raise EmbeddedError(
            f"can't make the folders of the embedded server's data and socket: {error}; set JOBQ_DATA to a "
            "writable folder, or JOBQ_URL to a server"
        ) from error
    if not _is_private(files.socket.parent):
        raise EmbeddedError(
            f"{files.socket.parent} is accessible to other users; remove it, or set XDG_RUNTIME_DIR to a folder that "
            "only you can use"
        )


def check(files: ServerFiles) -> None:
    """Raise EmbeddedError if another user owns or can access the data, or if files are links."""
    try:
        status = files.data.lstat()
    except FileNotFoundError:
        return
    fault = ""
    if stat.S_ISLNK(status.st_mode):
        fault = "is a symbolic link; set JOBQ_DATA to the linked folder"
    elif not stat.S_ISDIR(status.st_mode):
        fault = "is not a folder; remove it"
    elif status.st_uid != os.geteuid():
        fault = f"belongs to {user_name(status.st_uid)}, not to you; set JOBQ_DATA to a folder that you own"
    elif status.st_mode & 0o022:
        fault = "can be written by others; remove it, or set JOBQ_DATA to another folder"
    elif status.st_mode & 0o077 and _entries(files.data):
        # Folders made by jobq are closed to others. A copy or a checkout may contain other users' messages.
        fault = f"is not empty, and others can read it; if all its files are yours, run chmod 700 {files.data}"
    if fault:
        raise EmbeddedError(f"{files.data} {fault}, or set JOBQ_URL to use another server")
    for path, entry in _entries(files.data):
        plain = stat.S_ISREG(entry.st_mode) or stat.S_ISDIR(entry.st_mode)
        if not plain or entry.st_uid != os.geteuid():
            what = "is not a plain file" if not plain else f"belongs to {user_name(entry.st_uid)}"
            raise EmbeddedError(f"{path} {what}, but the server would write to it; remove it")


def is_own_socket(path: Path) -> bool:
    """Return whether a path is this user's socket in a folder that no other user can access."""
    try:
        status = path.lstat()
    except OSError:
        return False
    mine = stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid()
    return mine and _is_private(path.parent)


def opened(path: Path, flags: int) -> int:
    """Open a file of the embedded server without following links. If the file is new, only its owner can read it."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def noted(path: Path) -> str | None:
    """Read the path stored in the file at `path`. Return None if the file doesn't exist."""
    try:
        with open(opened(path, os.O_RDONLY), "rb") as file:
            return os.fsdecode(file.read())
    except FileNotFoundError:
        return None


def write(path: Path, content: bytes) -> None:
    """Replace a file's content."""
    with open(opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(content)


def _make_private(folder: Path) -> None:
    """Make this user's empty folder private if other users can read it."""
    descriptor = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        itself = os.open(folder.name, flags, dir_fd=descriptor)
    except OSError:
        return  # check() reports it
    finally:
        os.close(descriptor)
    try:
        status = os.fstat(itself)
        readable = status.st_mode & 0o077 and not status.st_mode & 0o022
        if readable and status.st_uid == os.geteuid() and not os.listdir(itself):
            os.fchmod(itself, 0o700)
            logger.warning("%s was readable by other users; jobq changed its mode to 700", folder)
    finally:
        os.close(itself)


def _is_private(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return own and not status.st_mode & 0o077


def _entries(data: Path) -> list[tuple[Path, os.stat_result]]:
    """Return each file of the server or of jobq in the data folder, with its status.

    Skip files that a stopping server removes at the same time.
    """
    paths = [
        path for path in data.iterdir() if path.name in _NAMES or path.name.startswith("temp-")
    ]
    log = data / "appendonlydir"
    entries = []
    with suppress(FileNotFoundError):
        if log in paths and not log.is_symlink() and log.is_dir():
            paths += log.iterdir()
    for path in paths:
        with suppress(FileNotFoundError):
            entries.append((path, path.lstat()))
    return entries
