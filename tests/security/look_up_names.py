"""`python -m tests.security.look_up_names COUNT SEED`: that many names of jobs that nobody has, with all that Python
could import, compile or start told by an audit hook. Prints the number of look-ups, and the answers.
"""

from __future__ import annotations

import importlib
import logging
import random
import string
import sys

import msgspec

from jobq.jobs.context import Call
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry, job
from jobq.queue.types import Message

TELLING = (
    "import",
    "exec",
    "compile",
    "os.",
    "subprocess.",
    "ctypes.",
    "open",
    "code.",
    "pickle.",
    "marshal.",
)
LETTERS = string.ascii_letters + string.digits + "._:/-\\\0\n é\u202e"
SEPARATORS = (".", ":", "/", "::", "..", "\0")


def names(count: int, seed: int) -> list[str]:
    """Yield the names that an attacker would try: real modules and their functions, and noise."""
    luck = random.Random(seed)
    modules = sorted(sys.stdlib_module_names | set(sys.modules))
    found = [
        "os.system",
        "os:system",
        "subprocess.Popen",
        "builtins.eval",
        "__import__",
        "antigravity",
        "this",
    ]
    while len(found) < count:
        module = luck.choice(modules)
        inside = dir(sys.modules[module]) if module in sys.modules else ["system", "run", "main"]
        kind = luck.randrange(3)
        if kind == 0:
            found.append(module + luck.choice(SEPARATORS) + luck.choice(inside or ["x"]))
        elif kind == 1:
            found.append(module)
        else:
            found.append("".join(luck.choices(LETTERS, k=luck.randint(1, 60))))
    return [name for name in found if name != "the.one"]


def main() -> None:
    """Look them all up, and say what that did."""
    logging.disable(logging.CRITICAL)
    ran: list[tuple[object, ...]] = []
    registry = Registry()
    job(name="the.one", registry=registry)(lambda *args, **_: ran.append(args))
    runner = Executor(registry)

    def attempt(name: str) -> str:
        content = msgspec.json.encode({"job": name, "args": [name], "kwargs": {"name": name}})
        message = Message("m", content, 1, 0, 7, "first", "caller.1.0", 0)
        call = runner.resolve("low", message)
        return (runner.run(call) if isinstance(call, Call) else call).outcome

    given = names(int(sys.argv[1]), int(sys.argv[2]))
    attempt("the.one")
    attempt("nobody's")
    assert len(ran) == 1
    told: list[str] = []
    looking = True
    # A hook can't be taken away again: so it needs its own process.
    sys.addaudithook(
        lambda event, _: told.append(event) if looking and event.startswith(TELLING) else None
    )
    before = set(sys.modules)
    outcomes = {attempt(name) for name in given}
    assert len(ran) == 1
    assert set(sys.modules) == before
    silent = sorted(set(told))
    importlib.import_module("colorsys")
    assert "exec" in told, "the hook is deaf"
    looking = False
    assert outcomes <= {"unknown", "dead"}, outcomes
    print(len(given), silent)


if __name__ == "__main__":
    main()
