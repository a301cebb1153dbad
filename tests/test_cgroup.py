"""Processors that a cgroup allows, as a container sees them."""

from __future__ import annotations

import pytest

from jobq import cgroup, config

V1 = "4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n1:name=systemd:/docker/abc\n"


def tree(root, lines, files):
    for path, text in {"proc/self/cgroup": lines, **files}.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("lines", "files", "count"),
    [
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (
            "0::/a/b\n",
            {"sys/fs/cgroup/a/cpu.max": "300000 100000", "sys/fs/cgroup/a/b/cpu.max": "max 100000"},
            3,
        ),
        (
            V1,  # a container that sees the host's path, and its own files at the top
            {
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            2,
        ),
        (
            V1,
            {
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
            },
            None,
        ),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "nonsense"}, None),
        ("0::/\n", {}, None),
    ],
    ids=["v2", "v2-part", "v2-none", "v2-parent", "v1", "v1-none", "damaged", "missing"],
)
def test_quota_is_rounded_up_to_processors(tmp_path, lines, files, count):
    assert cgroup.processors(tree(tmp_path, lines, files)) == count


def test_host_without_cgroups_has_no_quota(tmp_path):
    assert cgroup.processors(tmp_path) is None


def test_default_number_of_processes_is_bounded_by_the_quota(monkeypatch):
    monkeypatch.setattr(cgroup, "processors", lambda: 1)
    assert config.WorkerSettings().processes == 1
    assert config.WorkerSettings(processes=7).processes == 7
