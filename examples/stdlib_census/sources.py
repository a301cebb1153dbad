"""Choose the files to count."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

#: Package folders inside the library's folder. They are skipped because a virtual environment uses its base
#: Python's library, but not its packages.
BESIDE = frozenset(("site-packages", "dist-packages"))
#: Files that the demo writes. Python can't parse or decode them.
BROKEN = {
    "no_syntax.py": b"def unfinished(:\n    pass\n",
    "no_encoding.py": b"# -*- coding: utf-8 -*-\nname = '\xff\xfe'\n",
    "null_bytes.py": b"x = 1\n\x00\x00\n",
}


def installed() -> list[str]:
    """Return each source file of the standard library and of the installed packages once."""
    paths = sysconfig.get_paths()
    library = {os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib")}
    packages = {os.path.realpath(paths[name]) for name in ("purelib", "platlib")}
    sources = []
    for top in (*packages, *library):
        for folder, below, names in os.walk(top):
            if folder in library:
                below[:] = [name for name in below if name not in BESIDE]
            sources += [f"{folder}/{name}" for name in names if name.endswith(".py")]
    # Folder paths are already resolved, but files may be links.
    return sorted(
        {
            os.path.realpath(file) if os.path.islink(file) else file
            for file in sources
            if os.path.isfile(file)
        }
    )


def chosen(most: int | None) -> list[str]:
    """Return all files, or `most` of them spread evenly."""
    files = installed()
    if most is None or most >= len(files):
        return files
    return [files[index * len(files) // most] for index in range(most)]


def write_broken(folder: Path) -> list[str]:
    """Write files that can't be parsed or decoded, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in BROKEN.items():
        (folder / name).write_bytes(content)
    return [str(folder / name) for name in BROKEN]
