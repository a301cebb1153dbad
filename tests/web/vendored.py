"""`make vendor`: fetch the files of others again, compare what npm brings with vendor.toml, copy one file of each."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "jobq/web/static/vendor", ROOT / "tests/web/vendor")


def listed(folder: Path) -> list[dict[str, str]]:
    """The files that a folder's vendor.toml names."""
    found: list[dict[str, str]] = tomllib.loads((folder / "vendor.toml").read_text())["file"]
    return found


def fetch(one: dict[str, str], folder: Path) -> None:
    """Bring one file from npm. SystemExit if it isn't the one that was looked at."""
    with tempfile.TemporaryDirectory() as place:
        name = f"{one['package']}@{one['version']}"
        command = ["npm", "pack", name, "--ignore-scripts", "--silent", "--pack-destination", place]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        [archive] = Path(place).glob("*.tgz")
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if f"sha512-{digest}" != one["integrity"]:
            sys.exit(f"{name} is not the package of vendor.toml: sha512-{digest}")
        with tarfile.open(archive) as packed:
            member = packed.extractfile(one["member"])
            content = member.read() if member else b""
    if hashlib.sha256(content).hexdigest() != one["sha256"]:
        sys.exit(f"{one['member']} of {name} is not the file of vendor.toml")
    (folder / one["name"]).write_bytes(content)
    print(f"{name}: {one['name']}, {len(content):,} bytes")


if __name__ == "__main__":
    for folder in FOLDERS:
        for one in listed(folder):
            fetch(one, folder)
