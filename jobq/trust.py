"""Decide from which files jobq reads settings and code: files owned by you or root, in folders that nobody else can
write to.

jobq ignores other files and reports why.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
from pathlib import Path
from typing import NamedTuple

from jobq.errors import JobqError

PROJECT = "pyproject.toml"
#: The environment variable that names the file to read, regardless of its owner.
NAMED_BY = "JOBQ_PYPROJECT"
_SECTION = re.compile(rb"\btool\s*\.\s*[\"']?jobq\b")
_SCAN_BYTES = 1 << 20
_OCTAL = re.compile(rb"\\([0-7]{3})")


class Project(NamedTuple):
    """A pyproject.toml: its path and its text."""

    path: Path
    text: bytes


class Search(NamedTuple):
    """The pyproject.toml to read, and the reasons why other files with a section [tool.jobq] are ignored."""

    project: Project | None
    refused: list[str]


class UntrustedFileError(JobqError):
    """Another user owns the file or can write to it; the message names the user."""


def project(working: Path) -> Search:
    """Find the nearest trusted pyproject.toml in `working` or its parents, up to your home folder or the mount point.

    A file named by JOBQ_PYPROJECT is read without checks. Raises OSError if a trusted file can't be read.
    """
    named = os.environ.get(NAMED_BY)
    if named:
        path = Path(named).expanduser().absolute()
        return Search(Project(path, path.read_bytes()), [])
    refused: list[str] = []
    boundary, mounts = "", _mounts()
    for folder in (working, *working.parents):
        path = folder / PROJECT
        try:
            text = None if boundary else _trusted_text(folder)
            reason = boundary
        except UntrustedFileError as error:
            text, reason = None, str(error)
        if text is not None:
            return Search(Project(path, text), refused)
        if reason and _has_section(path):
            refused.append(
                f"{path} isn't read: {reason}; if you trust it, set {NAMED_BY}={path}"
            )  # fmt: skip
        boundary = boundary or _boundary(folder, mounts)
    return Search(None, refused)


def fault(status: os.stat_result, *, has_acl: bool = False) -> str:
    """Return how another user can change a file or folder; '' if no other user can.

    A sticky folder counts as writable, because other users can add files to it.
    """
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to {user_name(status.st_uid)}, not to you or root"
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    if status.st_mode & stat.S_IWGRP and (has_acl or not _own_group(status.st_gid)):
        return f"can be written by the group {_group_name(status.st_gid)}"
    return ""


def folder_fault(folder: Path, top: Path) -> str:
    """Return how another user could put code into `folder` or a parent up to `top`; '' if no other user can."""
    for each in (folder, *folder.parents):
        # The owner of a link decides where it leads.
        status, leads = each.stat(), each.lstat().st_uid
        if not stat.S_ISDIR(status.st_mode):
            return f"{each} is not a folder"
        # Group write permission is accepted here, because the user chose the folder and the umask.
        owned = {status.st_uid, leads} <= {os.geteuid(), 0}
        if not owned or status.st_mode & stat.S_IWOTH:
            return f"{each} {fault(status) or f'is a link of {user_name(leads)}'}"
        if each == top:
            break
    return ""


def writable_by_all(folder: Path) -> bool:
    """Return whether every user can add files to this folder, as in a temporary folder."""
    try:
        return bool(folder.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False


def _trusted_text(folder: Path) -> bytes | None:
    """Return the text of the folder's pyproject.toml, or None if the file doesn't exist. Raise an error if it isn't
    trusted.
    """
    try:
        place = _opened(folder)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.stat(PROJECT, dir_fd=place).st_mode):
            return None
        if reason := _fault_of(place):
            raise UntrustedFileError(f"its folder {reason}")
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        with open(os.open(PROJECT, flags, dir_fd=place), "rb") as file:
            if reason := _fault_of(file.fileno()):
                raise UntrustedFileError(f"it {reason}")
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    finally:
        os.close(place)


def _opened(folder: Path) -> int:
    flags = os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return os.open(folder, os.O_RDONLY | flags)
    except PermissionError:
        # A folder may be searchable but not readable.
        return os.open(folder, getattr(os, "O_PATH", os.O_RDONLY) | flags)


def _fault_of(descriptor: int) -> str:
    return fault(os.fstat(descriptor), has_acl=_has_acl(descriptor))


def _has_acl(descriptor: int) -> bool:
    """Return whether the file has an ACL. If so, its group bits show the maximum rights of the users in the ACL."""
    try:
        return "system.posix_acl_access" in os.listxattr(descriptor)
    except (AttributeError, OSError):
        return False


def _boundary(folder: Path, mounts: set[str]) -> str:
    """Return why the search for pyproject.toml stops at this folder, or '' if it continues."""
    home = os.path.realpath(os.path.expanduser("~"))
    if str(folder) == home:
        return f"it is above your home, {folder}"
    if folder != folder.parent and (os.path.ismount(folder) or str(folder) in mounts):
        return f"it is above the mount point {folder}"
    return ""


def _mounts() -> set[str]:
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            points = [line.split()[4] for line in file]
    except (OSError, IndexError):
        return set()
    # Spaces, line feeds and backslashes in names are written as octal numbers there.
    return {
        os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), point)) for point in points
    }


def _has_section(path: Path) -> bool:
    """Return whether an ignored file seems to have a section [tool.jobq], and so should be reported."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    with open(descriptor, "rb") as file:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return regular and bool(_SECTION.search(file.read(_SCAN_BYTES)))


def _own_group(gid: int) -> bool:
    """Return whether a group's only members are the current user and root."""
    try:
        group, you = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    named = group.gr_name == you.pw_name and gid == you.pw_gid
    return (named or gid == 0) and set(group.gr_mem) <= {you.pw_name, "root"}


def user_name(uid: int) -> str:
    """Return the user's name and number."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"with gid {gid}"
