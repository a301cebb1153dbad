"""Blocks of pages, and a folder in which they run as they are typed."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = int(os.environ.get("JOBQ_PAGES_DEADLINE", "120"))
#: A first line that is a file's name.
NAMED = re.compile(r"# ([\w/]+\.(?:py|toml))\n")
#: What differs from run to run in output that a page shows: message ids, run ids of flows, durations of any
#: unit, numbers, blanks, and what `…` stands for.
VARYING = re.compile(
    r"(?P<mid>\b(?=[\w-]*\d)[\w-]{14}\b)|(?P<run>(?<=\.)[a-z0-9]{6}(?=\.[\w-]+\.\d))"
    r"|(?P<lasting>\b\d[\d.]* m?s\b)|(?P<number>\d[\d.,:]*)|(?P<blank>\s+)|(?P<any>…)"
)
PATTERNS = {
    "mid": r"[\w-]+",
    "run": r"[a-z0-9]{6}",
    "lasting": r"(?:\d+ m )?\d[\d.]*\s+m?s",
    "number": r"\d[\d.,:]*",
    "blank": r"\s+",
    "any": r".*",
}
#: Typed into one interpreter, as `python -m asyncio` takes them: blocks end with a NUL, and each is answered by one.
TYPED = r"""
import ast, asyncio, inspect, sys
names = {"__name__": "__main__"}
with asyncio.Runner() as runner:
    text = ""
    while line := sys.stdin.readline():
        if line != "\0\n":
            text += line
            continue
        done = eval(compile(text, "typed", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if inspect.iscoroutine(done):
            runner.run(done)
        text = ""
        print("\0", flush=True)
"""

#: What a shell alone understands.
SHELL = re.compile(r"[\n|&;<>$`*?(){}~]")

#: Commands that go on until Ctrl-C, and what they write once they serve.
SERVERS = {
    r"jobq worker (?!.*--check).*--health": r"probes and metrics at",
    r"flask --app \S+ run": r"Running on http",
    r"flask --app \S+ jobq worker": r" starts \d+ children",
    r"jobq worker (?!.*--(?:burst|check))": r" starts \d+ children|begins",
    r"python manage.py jobq worker(?!.*--burst)": r" starts \d+ children|begins",
    r"uvicorn ": r"Uvicorn running on",
    # Both workers name their jobs, and each of three orders sends an invoice.
    r"honcho start": r"(?s)(shop\.invoice.*){5}",
}


class Block(NamedTuple):
    """One fenced block."""

    language: str
    text: str

    @property
    def is_commands(self) -> bool:
        return self.language in {"", "sh"}

    @property
    def service(self) -> str:
        """The command of a systemd unit or of a container; empty where the block is something else."""
        if self.language == "ini":
            start = next(line for line in self.text.splitlines() if line.startswith("ExecStart="))
            return start.partition("/bin/")[2]
        if self.language == "dockerfile":
            return " ".join(json.loads(self.text.partition("CMD ")[2]))
        return ""

    @property
    def is_run(self) -> bool:
        return self.is_commands or self.language == "python"

    @property
    def is_output(self) -> bool:
        return self.language == "output"

    @property
    def patterns(self) -> list[str]:
        """A regular expression for each line of output."""
        return [_pattern(line) for line in self.text.splitlines() if line.strip()]

    @property
    def commands(self) -> list[str]:
        return [line for line in self.text.splitlines() if line and not line.startswith("#")]


def blocks(text: str) -> list[Block]:
    """All blocks, in their order."""
    fences = re.findall(r"^```([^\n`]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(language.strip(), body) for language, body in fences]


def _pattern(line: str) -> str:
    pieces, end = [], 0
    for found in VARYING.finditer(line.strip()):
        pieces += [re.escape(line.strip()[end : found.start()]), PATTERNS[str(found.lastgroup)]]
        end = found.end()
    return "".join([*pieces, re.escape(line.strip()[end:])])


def _words(commands: str) -> list[str]:
    """Return the arguments of one plain command of Python or jobq, else those of a shell with the commands."""
    words = shlex.split(commands, comments=True) if not SHELL.search(commands) else []
    if words[:1] == ["exec"]:
        words = words[1:]
    bin_folder = Path(sys.executable).parent
    programs = {"jobq": str(bin_folder / "jobq"), "python": sys.executable}
    if words and words[0] in programs:
        return [programs[words[0]], *words[1:]]
    return ["bash", "-e", "-c", commands]


class Shell:
    """A working folder, and terminals in it."""

    def __init__(self, folder: Path, url: str, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        #: Where the first terminal is: `cd` moves it.
        self.here = folder
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS", "PYTHON"))
        }
        self.env = {**kept, "JOBQ_URL": url, "PATH": path, **(env or {})}
        #: What goes on until Ctrl-C, and what ends by itself in the background.
        self.servers: list[subprocess.Popen[str]] = []
        self.jobs: list[subprocess.Popen[str]] = []
        self._running: list[subprocess.Popen[str]] = []
        self._typed: subprocess.Popen[str] | None = None

    def write(self, texts: Iterable[str]) -> None:
        """Files whose first line is their name."""
        for text in texts:
            named = NAMED.match(text)
            assert named, text
            path = self.folder / named[1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    def run(self, commands: str) -> str:
        """Commands of the first terminal; what all wrote so far. What they start in the background goes on."""
        process = self.start(commands)
        code = process.wait(DEADLINE_S)
        assert code == 0, f"{commands}\n{self.output()}"
        return self.output()

    def start(self, commands: str) -> subprocess.Popen[str]:
        """Commands of another terminal."""
        with (self.folder / "output").open("a") as output:
            process = subprocess.Popen(
                _words(commands), cwd=self.here, env=self.env, text=True,
                stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self._running.append(process)
        return process

    def type(self, text: str) -> None:
        """Python, typed into the interpreter of the second terminal."""
        if self._typed is None:
            with (self.folder / "output").open("a") as output:
                self._typed = subprocess.Popen(
                    [sys.executable, "-c", TYPED], cwd=self.here, env=self.env, text=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, start_new_session=True,
                )  # fmt: skip
            self._running.append(self._typed)
        assert self._typed.stdin is not None
        assert self._typed.stdout is not None
        self._typed.stdin.write(f"{text}\n\0\n")
        self._typed.stdin.flush()
        while line := self._typed.stdout.readline():
            if line == "\0\n":
                return
            with (self.folder / "output").open("a") as output:
                output.write(line)
        raise AssertionError(f"{text}\n{self.output()}")

    def output(self) -> str:
        """What all terminals wrote."""
        path = self.folder / "output"
        return path.read_text() if path.exists() else ""

    def await_output(self, pattern: str, after: int = 0) -> None:
        """Wait until a terminal wrote it, behind the first characters."""
        deadline = time.monotonic() + DEADLINE_S
        while not re.search(pattern, self.output()[after:]):
            assert time.monotonic() < deadline, f"{pattern}\n{self.output()}"
            time.sleep(0.02)

    def lines(self, name: str) -> list[str]:
        """What jobs wrote."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def until(self, name: str, lines: set[str]) -> None:
        """Wait for what jobs write."""
        deadline = time.monotonic() + DEADLINE_S
        while set(self.lines(name)) != lines:
            assert time.monotonic() < deadline, (self.lines(name), self.output())
            time.sleep(0.02)

    def interrupt(self, process: subprocess.Popen[str]) -> int:
        """Ctrl-C in its terminal; its exit code."""
        os.killpg(process.pid, signal.SIGINT)
        return process.wait(DEADLINE_S)

    def close(self) -> None:
        """End what was left in the background."""
        for process in self._running:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait(DEADLINE_S)


def type_page(shell: Shell, text: str, skipped: Callable[[str], bool]) -> None:
    """All that a page shows, in its order, but what is `skipped`; what it starts still runs afterwards."""
    for block in blocks(text):
        if block.is_output:
            for pattern in block.patterns:
                shell.await_output(pattern)
        elif (
            block.language[:1] == "{"
            or block.language in {"text", "yaml"}
            or (not block.is_commands and skipped(block.text))
        ):
            continue
        elif block.service:
            type_command(shell, block.service)
        elif block.is_commands:
            for command in block.commands:
                if not skipped(command):
                    type_command(shell, command)
        elif NAMED.match(block.text):
            shell.write([block.text])
        else:
            shell.type(block.text)


def server_of(command: str) -> str | None:
    """What it writes when it serves; None if the command ends by itself."""
    return next((ready for begins, ready in SERVERS.items() if re.match(begins, command)), None)


def type_command(shell: Shell, command: str) -> None:
    """One command: to its end, until it serves, or in the background."""
    if place := re.match(r"cd (\S+)$", command):
        shell.here = shell.here / place[1]
        return
    written = len(shell.output())
    if ready := server_of(command):
        shell.servers.append(shell.start(f"exec {command}"))
        shell.await_output(ready, written)
        return
    if command.partition("#")[0].rstrip().endswith("&"):
        shell.jobs.append(shell.start(f"{command}\nwait $!"))
        return
    shell.run(filled(shell, command))


def filled(shell: Shell, command: str) -> str:
    """The command, with what the page's <id> or <mid> stands for: what the one before it wrote."""
    written = shell.output() if "<" in command else ""
    if "<mid>" in command:
        command = command.replace("<mid>", re.findall(r'"mid":"([^"]+)"', written)[-1])
    if "<id>" in command:
        command = command.replace(
            "<id>", re.findall(r"^accounts +(\S+)", written, re.MULTILINE)[-1]
        )
    return command
