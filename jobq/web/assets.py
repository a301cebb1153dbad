"""Static files: each name contains a hash, so browsers may cache the file permanently."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath

from jobq.observe.chart import style_sheet

TYPES = {
    ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
    ".png": "image/png",
}  # fmt: skip


@dataclass(frozen=True)
class Asset:
    """A static file.

    Attributes:
        served: File name in URLs.
        integrity: Integrity attribute for the page's link.
    """

    served: str
    kind: str
    integrity: str
    content: bytes


def asset_of(name: str, content: bytes) -> Asset:
    """Return `content` as a file named after its hash: `app.css` -> `app.1f2e3d4c5b6a.css`."""
    path = PurePosixPath(name)
    served = f"{path.stem}.{hashlib.sha256(content).hexdigest()[:12]}{path.suffix}"
    digest = base64.b64encode(hashlib.sha384(content).digest()).decode()
    return Asset(served, TYPES[path.suffix], f"sha384-{digest}", content)


@cache
def assets() -> dict[str, Asset]:
    """Return the package's static files by their original names."""
    root = files("jobq.web") / "static"
    paths = [*root.iterdir(), *(root / "vendor").iterdir()]
    made = {
        path.name: path.read_bytes()
        for path in paths
        if path.is_file() and PurePosixPath(path.name).suffix in TYPES
    }
    # Colours and rules for charts, also used in reports.
    made["app.css"] = style_sheet().encode() + made["app.css"]
    return {name: asset_of(name, content) for name, content in made.items()}


def accent_sheet(colour: str) -> Asset:
    """Return the style sheet that sets the accent colour of the pages."""
    return asset_of("accent.css", f":root {{ --accent: {colour}; }}\n".encode())
