"""`python -m tests.security.audit`: known faults of what is installed here, and of the lowest versions that
pyproject.toml admits, by pip-audit, for `make check`.

Exit code 1: one is known, unless JOBQ_AUDIT=report. A network without advisories is not a fault of the code:
it prints "not run". Exit code 2: pip-audit isn't installed, whatever JOBQ_AUDIT says.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

COMMAND = (
    sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--timeout", "10", "--format", "json",
)  # fmt: skip
LIMIT_S = 60
ROOT = Path(__file__).resolve().parents[2]
_LOWEST = re.compile(r"([A-Za-z0-9_-]+)(?:\[[^]]*\])?>=([0-9.]+)")


def judged(out: str, err: str) -> tuple[int, str]:
    """Return the exit code and the report about pip-audit's output."""
    try:
        found: list[dict[str, Any]] = json.loads(out)["dependencies"]
    except (ValueError, KeyError, TypeError):
        said = err.strip().splitlines() or ["it said nothing"]
        return 0, f"pip-audit: not run: {said[-1][:200]}"
    asked = [one for one in found if "vulns" in one]
    bad = [
        f"{one['name']} {one['version']}: {fault['id']}, fixed in {', '.join(fault['fix_versions']) or 'none yet'}"
        for one in asked
        for fault in one["vulns"]
    ]
    if bad:
        return 1, "\n".join(["pip-audit: known faults:", *bad])
    if not asked:
        return 0, f"pip-audit: not run: no advisories here for any of {len(found)} packages"
    unknown = f", {len(found) - len(asked)} unknown there" if len(found) > len(asked) else ""
    return 0, f"pip-audit: no known fault in {len(asked)} packages{unknown}"


def main() -> int:
    """Ask, and say."""
    if importlib.util.find_spec("pip_audit") is None:
        print("pip-audit is not installed: pip install --group check", file=sys.stderr)
        return 2
    codes = [said("installed", "--local", "--skip-editable")]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lowest.txt"
        file.write_text("".join(f"{name}=={version}\n" for name, version in lowest().items()))
        codes.append(said("lowest", "--requirement", str(file), "--no-deps", "--disable-pip"))
    return 0 if os.environ.get("JOBQ_AUDIT") == "report" else max(codes)


def lowest() -> dict[str, str]:
    """The lowest version that pyproject.toml admits of each package that users install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    return {found[1]: found[2] for found in map(_LOWEST.match, asked) if found}


def said(what: str, *options: str) -> int:
    """Run pip-audit, and print its output; the exit code."""
    try:
        ran = subprocess.run(
            [*COMMAND, *options], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        code, text = judged(ran.stdout, ran.stderr)
    except subprocess.TimeoutExpired:
        code, text = 0, f"pip-audit: not run: no answer within {LIMIT_S} s"
    print(f"{what}: {text}")
    return code


if __name__ == "__main__":
    sys.exit(main())
