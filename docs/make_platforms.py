"""Make docs/reference/platforms.md's table of extras: asks pip which wheels there are for each kind of machine.

`python docs/make_platforms.py` has pip resolve the dependencies of every extra, from wheels alone, for each kind of machine with
the oldest and the newest Python. It takes about ten minutes. `python docs/make_platforms.py embedded web` asks for these alone, and prints.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "platforms.md"
BEGIN, END = "<!-- made by docs/make_platforms.py -->\n", "<!-- end -->\n"
PYTHONS = ("3.11", "3.14")
#: What a column is called -> the tags of wheels that such a machine takes, and how markers see it.
MACHINES = {
    "Linux x86_64": ([f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17, 12, 5)] + ["manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64"], "x86_64", "linux"),
    "Linux aarch64": ([f"manylinux_2_{minor}_aarch64" for minor in (28, 27, 26, 24, 17)] + ["manylinux2014_aarch64"], "aarch64", "linux"),
    "Alpine x86_64": (["musllinux_1_2_x86_64", "musllinux_1_1_x86_64"], "x86_64", "linux"),
    "Alpine aarch64": (["musllinux_1_2_aarch64", "musllinux_1_1_aarch64"], "aarch64", "linux"),
    "macOS arm64": (["macosx_14_0_arm64"], "arm64", "darwin"),
    "macOS x86_64": (["macosx_14_0_x86_64"], "x86_64", "darwin"),
}  # fmt: skip
#: Packages that come as source without a line of C, which `--only-binary` would refuse -> what they need in turn.
PURE = {
    "pyspark[sql]": ["py4j", "numpy"],
    "pyspark[pipelines]": ["grpcio", "grpcio-status", "protobuf", "zstandard", "PyYAML"],
}


def requirements(extra: str, project: dict) -> list[str]:
    """What an extra needs, with jobq's own extras put in their place."""
    if not extra:
        return list(project["dependencies"])
    needed: list[str] = []
    for requirement in project["optional-dependencies"][extra]:
        if requirement.startswith("jobq["):
            for other in requirement.partition("[")[2].rstrip("]").split(","):
                needed += requirements(other, project)
        else:
            needed += PURE.get(requirement.partition(">")[0], [requirement])
    return needed


def for_machine(requirement: str, python: str, machine: str, system: str) -> str:
    """The requirement without its marker; '' where the marker says that such a machine doesn't need it."""
    from packaging.requirements import Requirement

    parsed = Requirement(requirement)
    environment = {"python_version": python, "platform_machine": machine, "sys_platform": system}
    if parsed.marker and not parsed.marker.evaluate(
        {**environment, "python_full_version": f"{python}.0"}
    ):
        return ""
    parsed.marker = None
    return str(parsed)


def missing(needed: list[str], python: str, tags: list[str]) -> str:
    """What pip says is missing for such a machine; '' where all installs from wheels."""
    command = [
        sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--only-binary", ":all:",
        "--implementation", "cp", "--python-version", python,
    ]  # fmt: skip
    for tag in tags:
        command += ["--platform", tag]
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            [*command, "--target", folder, *needed], capture_output=True, text=True, check=False
        )
    if not ran.returncode:
        return ""
    errors = [
        line for line in ran.stderr.splitlines() if "No matching distribution found for" in line
    ]
    if not errors:
        raise SystemExit(f"pip failed: {ran.stderr[-2000:]}")
    name = errors[-1].rpartition(" for ")[2]
    for end in "<>=!~[( ;":
        name = name.partition(end)[0]
    return name


def parts(extra: str, project: dict) -> list[str]:
    """The extras that an extra only puts together; none if it names packages itself."""
    named = project["optional-dependencies"].get(extra, [""])
    if not all(text.startswith("jobq[") for text in named):
        return []
    return [part for text in named for part in text.partition("[")[2].rstrip("]").split(",")]


def cell(lacking: dict[str, set[str]]) -> str:
    """`yes`, or each package without a wheel; with its Pythons, unless it is all of them."""
    words = [
        f"no {name}" + (f" for {', '.join(sorted(pythons))}" if len(pythons) < len(PYTHONS) else "")
        for name, pythons in lacking.items()
    ]
    return "; ".join(words) or "yes"


def table(extras: list[str], project: dict) -> str:
    asked = [
        (extra, machine, python)
        for extra in extras
        for machine in MACHINES
        for python in PYTHONS
        if not parts(extra, project)
    ]

    def answer(asking: tuple[str, str, str]) -> str:
        extra, machine, python = asking
        tags, processor, system = MACHINES[machine]
        needed = [
            text
            for each in requirements(extra, project)
            if (text := for_machine(each, python, processor, system))
        ]
        name = missing(needed, python, tags) if needed else ""
        print(*asking, name or "yes", file=sys.stderr, flush=True)
        return name

    # Most of the time is the index's.
    with ThreadPoolExecutor(16) as pool:
        answers = dict(zip(asked, pool.map(answer, asked)))
    lines = ["| | " + " | ".join(MACHINES) + " |", "|---|" + "---|" * len(MACHINES)]
    for extra in extras:
        cells = []
        for machine in MACHINES:
            lacking: dict[str, set[str]] = {}
            for (other, there, python), name in answers.items():
                if name and there == machine and other in (parts(extra, project) or [extra]):
                    lacking.setdefault(name, set()).add(python)
            cells.append(cell(lacking))
        lines.append(f"| {f'`{extra}`' if extra else 'jobq itself'} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(chosen: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    made = table(chosen or ["", *project["optional-dependencies"]], project)
    if chosen:
        print(made)
        return
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(
        before + BEGIN + "\n" + made + "\n" + END + rest.partition(END)[2], encoding="utf-8"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
