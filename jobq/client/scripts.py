"""Load Lua scripts, and read the names of their keys and arguments.

A script names its keys and arguments in the lines `local … = unpack(KEYS)` and `local … = unpack(ARGV…)`. Only these
lines define the order of keys and arguments. `--@include _name` includes a fragment from the same folder, and
`--@include area/_name` includes a fragment from another folder.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import cast

import hiredis

from jobq.errors import ScriptError

Argument = str | bytes | int
#: A command as words, or as the bytes packed from them.
Command = tuple[Argument, ...] | bytes
#: Packs the words of a command into the bytes to send.
packed = cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)
_INCLUDE = re.compile(r"^--@include ((?:\w+/)?\w+)$", re.MULTILINE)
_RECORD = re.compile(r"'SET', (?:last_call|call\.key|pushed), .*'PX'")
_BINDING = re.compile(r"^local ([\w,\s]+?) = unpack\((KEYS|ARGV)\b[^)]*\)", re.MULTILINE)


def wire(command: Command) -> bytes:
    """Return a command as the bytes to send."""
    return command if isinstance(command, bytes) else packed(command)


def words_packed(words: tuple[Argument, ...]) -> bytes:
    """Pack words of a command, without the header line that counts them."""
    made = packed(words)
    return made[made.index(b"\n") + 1 :]


class Script:
    """One Lua script, with its fragments included."""

    def __init__(self, path: Path) -> None:
        self.area, self.name = path.parent.name, path.stem
        text = path.read_text(encoding="utf-8")
        self.text = _INCLUDE.sub(lambda match: _fragment(path, match[1]), text)
        self.source = self.text.encode()
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest()
        bound = {kind: re.split(r",\s*", names) for names, kind in _BINDING.findall(text)}
        self.keys: tuple[str, ...] = tuple(bound.get("KEYS", ()))
        self.args: tuple[str, ...] = tuple(bound.get("ARGV", ()))
        self.nargs = len(self.args)
        #: Orders arguments, given by name, as the script unpacks them. Raises KeyError if an argument is missing.
        self.order = _order(self.args)
        #: Whether the script's calls are numbered; `order_numbered` orders the arguments after caller and number.
        self.numbered = self.args[:2] == ("caller", "number")
        self.order_numbered = _order(self.args[2:])
        #: Whether the script keeps a record of its call for a while, so that a repetition is harmless.
        self.recorded = _RECORD.search(self.text) is not None
        self.writes = "no-writes" not in self.text.partition("\n")[0]

    def misnamed(self, values: Mapping[str, Argument]) -> TypeError:
        """Return the error for arguments that the script doesn't take."""
        return TypeError(f"{self!r} takes {', '.join(self.args)}, not {', '.join(values)}")

    def __repr__(self) -> str:
        return f"Script({self.name!r})"


def _order(names: tuple[str, ...]) -> Callable[[Mapping[str, Argument]], tuple[Argument, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda values: tuple([values[name] for name in names])


def _fragment(path: Path, name: str) -> str:
    area, _, stem = name.rpartition("/")
    place = path.parents[1] / area if area else path.parent
    return (place / f"{stem}.lua").read_text(encoding="utf-8")


def folder() -> Path:
    """Return the folder of the Lua files: inside the installed package, or next to it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for place in (package / "lua", package.parent / "lua"):
        if place.is_dir():
            return place
    if not package.is_dir():
        raise ScriptError(
            f"jobq is imported from an archive, {package.parent}, but reads its scripts as files; unpack it, or use "
            "a tool that unpacks when the program starts, such as shiv or pex"
        )
    raise ScriptError(f"no lua/ folder in or next to {package}; reinstall jobq")


@cache
def load(area: str, name: str) -> Script:
    """Return the script `lua/<area>/<name>.lua`. It is read once per process."""
    return Script(folder() / area / f"{name}.lua")
