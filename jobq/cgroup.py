"""The files of this process's cgroup (v1 or v2), and how many processors the cgroup may use."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from pathlib import Path

_ROOT = Path("/")


def own_folders(controller: str = "", root: Path = _ROOT) -> Iterator[Path]:
    """Yield the folder of this process's cgroup, then the folders above it, because their limits also apply.

    In a container, the cgroup's path may exist only on the host, so the last folder is always the root of the tree.

    Args:
        controller: Controller of cgroup v1; '' for v2, which has a single tree.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controllers
            own = top / path.lstrip("/")
            yield own
            yield from (folder for folder in own.parents if folder.is_relative_to(top))


def processors(root: Path = _ROOT) -> int | None:
    """Return the number of processors that CPU quotas allow, rounded up, or None if there is no quota."""
    quotas = [*map(_quota_v2, own_folders("", root)), *map(_quota_v1, own_folders("cpu", root))]
    return min((ceil(quota) for quota in quotas if quota), default=None)


def _quota_v2(folder: Path) -> float:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return 0.0  # none, or "max"


def _quota_v1(folder: Path) -> float:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        return max(0, quota) / int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError, ZeroDivisionError):
        return 0.0
