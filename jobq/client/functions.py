"""The scripts as one library of server functions, for users who may not load code.

The library is named `jobq_<hash>`, with a hash of its code. Functions of queues are named `jobq_<hash>_<script>`, and
functions of other protocols `jobq_<hash>_<protocol>__<script>`. So several versions of jobq can use one server during a
deployment.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol

from redis import exceptions as redis_errors
from redis.connection import Connection

from jobq.client.numbered_calls import is_missing_function
from jobq.client.scripts import Script, folder, load
from jobq.errors import ScriptError, UnavailableError

PREFIX = "jobq_"
_HEADER = re.compile(r"\A#!lua(?: flags=([\w,-]+))?\n")
_READING = "no-writes"


class Nodes(Protocol):
    """The interface of a client that can connect to every node."""

    def open_everywhere(self) -> Iterator[Connection]:
        """Return a connection to each node that serves keys."""
        ...


class Library(NamedTuple):
    """A library for `FUNCTION LOAD`.

    Attributes:
        commands: SHA of each script -> verb and function name that call the script.
    """

    name: str
    source: bytes
    commands: dict[str, tuple[str, str]]


@cache
def scripts() -> tuple[Script, ...]:
    """Return all scripts, without fragments."""
    paths = sorted(folder().glob("*/[!_]*.lua"))
    return tuple(load(path.parent.name, path.stem) for path in paths)


def flags(script: Script) -> list[str]:
    """Return the flags in the script's first line: `no-writes`, `allow-oom`."""
    match = _HEADER.match(script.text)
    return (match[1] or "").split(",") if match and match[1] else []


@cache
def library() -> Library:
    """Return the library of this version of jobq."""
    every = "".join(script.sha for script in scripts())
    name = PREFIX + hashlib.sha256(every.encode()).hexdigest()[:16]
    return made(name, {_named(name, script): script for script in scripts()})


@cache
def area_library(area: str) -> Library:
    """Return a library of one protocol's scripts for clients in any language.

    Function names are fixed, such as `reliable_push`.

    Each function takes the keys and arguments that its file in lua/ lists, in that order. If another version of jobq
    loads this library, it replaces the functions.
    """
    return made(
        area, {f"{area}_{script.name}": script for script in scripts() if script.area == area}
    )


def made(name: str, functions: Mapping[str, Script]) -> Library:
    """Return a library with these functions. `functions` maps the name of each function to its script."""
    parts = [f"#!lua name={name}\n", *(_function(*function) for function in functions.items())]
    commands = {
        script.sha: ("FCALL_RO" if _READING in flags(script) else "FCALL", word)
        for word, script in functions.items()
    }
    return Library(name, "".join(parts).encode(), commands)


def _named(library: str, script: Script) -> str:
    # Two underscores distinguish the script `read` of the area flow from the queue's script `flow_read`.
    area = f"{script.area}__" * (script.area not in ("queue", "shared"))
    return f"{library}_{area}{script.name}"


def called(script: Script) -> tuple[str, str]:
    """Return the first two words of the command that runs the script as a server function."""
    return library().commands[script.sha]


def called_by_sha(script: Script) -> tuple[str, str]:
    """Return the first two words of the command that calls the script by its hash."""
    return "EVALSHA", script.sha


def load_library(client: Nodes, wanted: Library | None = None) -> int:
    """Load a library on every node that serves keys, replacing a library of that name; return the number of nodes."""
    return len(_on_each(client, "LOAD", "REPLACE", (wanted or library()).source))


def other_libraries(client: Nodes) -> list[str]:
    """Return the names of libraries that other versions of jobq loaded."""
    names: set[str] = set()
    for reply in _on_each(client, "LIST", "LIBRARYNAME", f"{PREFIX}*"):
        names |= {_fields(entry)[b"library_name"].decode() for entry in reply}
    return sorted(names - {library().name})


def drop_library(client: Nodes, name: str) -> None:
    """Delete a library on every node that has it."""
    try:
        _on_each(client, "DELETE", name)
    except ScriptError as error:
        if not is_missing_function(error.__cause__):
            raise


def check_library(client: Nodes, wanted: Library | None = None) -> None:
    """Raise ScriptError if a node lacks the library or has different code for it. Default: this version's library.

    If the user may not list libraries, the check passes. Calls to missing functions then raise errors.
    """
    wanted = wanted or library()
    own = wanted.name.startswith(PREFIX)
    remedy = "run jobq functions load" + f" --library {wanted.name}" * (not own)
    try:
        replies = _on_each(client, "LIST", "LIBRARYNAME", wanted.name, "WITHCODE")
    except ScriptError as error:
        if isinstance(error.__cause__, redis_errors.NoPermissionError):
            return
        raise
    for reply in replies:
        if not reply:
            raise ScriptError(f"function library {wanted.name} is missing; {remedy}")
        if _fields(reply[0])[b"library_code"] != wanted.source:
            raise ScriptError(
                f"function library {wanted.name} has unexpected code: it was replaced"
                f" by another program{' or another version of jobq' * (not own)}; find out which, then {remedy}"
            )


def _function(called: str, script: Script) -> str:
    declared = ", ".join(f"'{flag}'" for flag in flags(script))
    body = _HEADER.sub("", script.text)
    return (
        f"redis.register_function{{function_name='{called}', flags={{{declared}}},\n"
        f"callback=function(KEYS, ARGV)\n{body}\nend}}\n"
    )


def _fields(reply: list[Any]) -> dict[bytes, Any]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _on_each(client: Nodes, verb: str, *rest: str | bytes) -> list[Any]:
    replies = []
    try:
        for connection in client.open_everywhere():
            try:
                connection.send_command("FUNCTION", verb, *rest)
                replies.append(connection.read_response())
            finally:
                connection.disconnect()
    except redis_errors.ConnectionError as error:
        raise UnavailableError(f"no answer to FUNCTION {verb}: {error}") from error
    except redis_errors.ResponseError as error:
        raise ScriptError(f"the server rejected FUNCTION {verb}: {error}") from error
    return replies
