"""PostgreSQL and MariaDB for tests: a private server on a socket, of what the machine or a package brings."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

START_S = 120


def postgresql_programs() -> Path | None:
    """The folder of PostgreSQL's programs: Debian's, or those of the package pgserver; None without either."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if installed:
        return installed[-1].parent
    found = shutil.which("postgres")
    if found:
        return Path(found).parent
    # Not imported: that would make folders of its own.
    package = find_spec("pgserver")
    places = list(package.submodule_search_locations or []) if package else []
    return Path(places[0]) / "pginstall" / "bin" if places else None


def mariadb_program() -> str | None:
    """MariaDB's server; None where it isn't installed."""
    places = f"{os.environ['PATH']}:/usr/sbin"
    return shutil.which("mariadbd", path=places) or shutil.which("mysqld", path=places)


class DatabaseServer:
    """One server in `folder`. Neither runs as root, so root starts it as nobody."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.process: subprocess.Popen[bytes] | None = None
        self.as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam("nobody")
            os.chown(folder, user.pw_uid, user.pw_gid)
            # Those above may be root's alone.
            for above in (folder, *folder.parents):
                if above.stat().st_mode & 0o001 == 0:
                    above.chmod(above.stat().st_mode | 0o011)
            self.as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        (folder / "log").touch()
        self.create()
        self.start()

    def create(self) -> None:
        """Make the data folder."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """What starts the server in the foreground."""
        raise NotImplementedError

    def ping(self) -> None:
        """Raise unless it answers."""
        raise NotImplementedError

    def run(self, *command: str) -> None:
        """A program that ends by itself."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=START_S,
            **self.as_user,
        )
        assert done.returncode == 0, (done.stdout, done.stderr)

    def start(self) -> None:
        """Start it, and wait until it answers. What is left of a killed one may stop the first tries."""
        deadline = time.monotonic() + START_S
        while not self.answers():
            if self.process is None or self.process.poll() is not None:
                self.process = self.started()
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.02)

    def started(self) -> subprocess.Popen[bytes]:
        """A new process."""
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                self.command(), cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **self.as_user
            )  # fmt: skip

    def answers(self) -> bool:
        """Whether the process that was started answers."""
        if self.process is None or self.process.poll() is not None:
            return False
        try:
            self.ping()
        except Exception:
            return False
        return True

    def kill(self) -> None:
        """kill -9, as a crash; its children end by themselves."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def stop(self) -> None:
        """End it with its children, whatever they do."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            try:
                self.process.wait(START_S)
            except subprocess.TimeoutExpired:
                self.kill()


class PostgresqlServer(DatabaseServer):
    """PostgreSQL. It doesn't sync: tests kill it, but not the machine."""

    def __init__(self, folder: Path) -> None:
        programs = postgresql_programs()
        assert programs is not None
        if os.geteuid() == 0 and "site-packages" in programs.parts:
            # nobody may not look into root's environments.
            package, copied = programs.parents[1], folder.with_name(f"{folder.name}-programs")
            for one in (package, package.with_name("pgserver.libs")):
                shutil.copytree(one, copied / one.name, symlinks=True)
            programs = copied / programs.relative_to(package.parent)
        self.programs = programs
        self.data = folder / "data"
        super().__init__(folder)

    def dsn(self, name: str = "postgres") -> str:
        """Of one database."""
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def create(self) -> None:
        options = ("--no-sync", "--no-locale", "--auth=trust", "--encoding=utf8", "-U", "postgres")
        self.run(str(self.programs / "initdb"), *options, "-D", str(self.data))

    def command(self) -> list[str]:
        settings = {
            "fsync": "off",
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(self.programs / "postgres"), "-D", str(self.data), *words]

    def ping(self) -> None:
        self.execute("SELECT 1")

    def execute(self, *statements: str, name: str = "postgres") -> None:
        """Run statements, each by itself."""
        import psycopg

        with psycopg.connect(self.dsn(name), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)


class MariadbServer(DatabaseServer):
    """MariaDB."""

    def dsn(self, name: str = "test") -> str:
        """Of one database."""
        return f"mysql://root@localhost/{name}?unix_socket={self.folder}/s"

    def create(self) -> None:
        self.run(
            "mariadb-install-db", "--no-defaults", f"--datadir={self.folder}/data",
            "--auth-root-authentication-method=normal", "--skip-test-db",
        )  # fmt: skip

    def command(self) -> list[str]:
        program = mariadb_program()
        assert program is not None
        return [
            program, "--no-defaults", f"--datadir={self.folder}/data", f"--socket={self.folder}/s", "--skip-networking",
            f"--pid-file={self.folder}/pid",
        ]  # fmt: skip

    def ping(self) -> None:
        # PyMySQL leaves a socket open that can't connect.
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(f"{self.folder}/s")
        self.execute("SELECT 1")

    def execute(self, *statements: str, name: str = "") -> None:
        """Run statements, each by itself."""
        import pymysql

        with pymysql.connect(
            unix_socket=f"{self.folder}/s", user="root", database=name or None, autocommit=True
        ) as connection:
            for statement in statements:
                connection.cursor().execute(statement)
