"""Which files are counted."""

from __future__ import annotations

import sysconfig
from pathlib import Path

#: Folders of installed packages below a library's folder, perhaps for another Python: a virtual environment uses
#: the library of its base Python, but not its packages.
BESIDE = frozenset(("site-packages", "dist-packages"))
#: Written by the demo; none of them is Python.
BROKEN = {
    "no_syntax.py": b"def unfinished(:\n    pass\n",
    "no_encoding.py": b"# -*- coding: utf-8 -*-\nname = '\xff\xfe'\n",
    "null_bytes.py": b"x = 1\n\x00\x00\n",
}


def installed() -> list[str]:
    """Every source file of the standard library and of the installed packages, each once."""
    paths = sysconfig.get_paths()
    library = {Path(paths[name]).resolve() for name in ("stdlib", "platstdlib")}
    packages = {Path(paths[name]).resolve() for name in ("purelib", "platlib")}
    sources = [file for folder in packages for file in folder.rglob("*.py")]
    for folder in library:
        own = folder.rglob("*.py")
        sources += [file for file in own if file.relative_to(folder).parts[0] not in BESIDE]
    return sorted({str(file.resolve()) for file in sources if file.is_file()})


def chosen(most: int | None) -> list[str]:
    """Return all files, or `most` of them spread evenly."""
    files = installed()
    if most is None or most >= len(files):
        return files
    return [files[index * len(files) // most] for index in range(most)]


def write_broken(folder: Path) -> list[str]:
    """Write the files that can't be parsed or decoded; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in BROKEN.items():
        (folder / name).write_bytes(content)
    return [str(folder / name) for name in BROKEN]
