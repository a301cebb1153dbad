"""Deployments beyond one server: behind TLS, watched by Sentinels, spread as a Cluster."""

from __future__ import annotations

import random
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis as redis_py
import trustme

from tests.waiting import until as wait_for

HOST = "127.0.0.1"
START_S = 100
PATIENT_MS = 60_000


def free_port() -> int:
    """A port that nobody listens on now, below those that systems give to whoever connects to somewhere."""
    # Not the module's generator: tests seed it, and others that run now must not get the same ports.
    generator = random.SystemRandom()
    while True:
        port = generator.randrange(10_240, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        return port


class TlsFront:
    """Ends TLS before a server's unix socket."""

    def __init__(self, folder: Path, target: str, name: str = "localhost") -> None:
        authority = trustme.CA()
        self.authority = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(context)
        self._target = target
        self._listening = context.wrap_socket(
            socket.create_server((HOST, 0)), server_side=True, do_handshake_on_connect=False
        )
        self.port = self._listening.getsockname()[1]
        self._open: list[socket.socket] = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                outside, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(outside,), daemon=True).start()

    def _serve(self, outside: ssl.SSLSocket) -> None:
        self._open.append(outside)
        try:
            outside.do_handshake()
        except OSError:
            outside.close()
            return
        inside = socket.socket(socket.AF_UNIX)
        self._open.append(inside)
        inside.connect(self._target)
        threading.Thread(target=_copy, args=(inside, outside), daemon=True).start()
        _copy(outside, inside)

    def close(self) -> None:
        """Cut everything."""
        for one in self._open:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    finally:
        sink.close()


class Node:
    """A server on a TCP port."""

    def __init__(
        self, program: str, folder: Path, *options: str, sentinel: bool = False, password: str = ""
    ) -> None:
        self.port = free_port()
        self.folder = folder / str(self.port)
        self.folder.mkdir()
        command = [program]
        if sentinel:
            config = self.folder / "sentinel.conf"
            config.write_text("\n".join(options))
            command += [str(config), "--sentinel"]
            options = ()
        # Without a title the guard of a test run knows it (tests/leftovers.py).
        command += ["--set-proc-title", "no", "--port", str(self.port), "--bind", HOST]
        command += ["--dir", str(self.folder), *options]
        if password and not sentinel:
            command += ["--requirepass", password]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.redis = redis_py.Redis(
            HOST,
            self.port,
            protocol=2,
            retry=None,
            decode_responses=True,
            password=password or None,
        )
        wait_for(self._answers, f"no answer: {(self.folder / 'log').read_text()}")

    def _answers(self) -> bool:
        try:
            return bool(self.redis.ping())
        except redis_py.RedisError:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            return False

    def kill(self) -> None:
        """Close the connection immediately."""
        self.redis.close()
        self.process.kill()
        self.process.wait()


def role(node: Node) -> str:
    """Return the role that the server reports, or "" if it doesn't answer.

    Sentinels close the connections of servers that they demote.
    """
    try:
        return str(node.redis.role()[0])
    except redis_py.RedisError:
        return ""


class Watched:
    """A master, a replica, and three Sentinels that agree on the master."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._nodes: list[Node] = []
        self.master = self._node()
        self.replica = self.follower(self.master)
        rules = (
            f"sentinel monitor main {HOST} {self.master.port} 2",
            f"sentinel down-after-milliseconds main {PATIENT_MS}",
            "sentinel failover-timeout main 3000",
        )
        self.sentinels = [Node(program, folder, *rules, sentinel=True) for _ in range(3)]
        wait_for(self._agreed, "the Sentinels don't know each other")

    def _node(self, *options: str) -> Node:
        at_once = ("--save", "", "--repl-diskless-sync-delay", "0")
        self._nodes.append(Node(self._program, self._folder, *at_once, *options))
        return self._nodes[-1]

    def follower(self, master: Node) -> Node:
        """One more server, that replicates this one."""
        node = self._node("--replicaof", HOST, str(master.port))
        wait_for(lambda: node.redis.info()["master_link_status"] == "up", "no replica")
        return node

    def names(self, node: Node) -> bool:
        """Whether this is the master to all Sentinels."""
        asked = [one.redis.sentinel_get_master_addr_by_name("main") for one in self.sentinels]
        return all(port == node.port for _, port in asked)

    @contextmanager
    def impatient(self) -> Iterator[None]:
        """Half a second of silence is a death to the Sentinels meanwhile; on a busy machine it needn't be one."""
        self._down_after(500)
        yield
        self._down_after(PATIENT_MS)

    def _down_after(self, ms: int) -> None:
        for node in self.sentinels:
            node.redis.execute_command("SENTINEL", "SET", "main", "down-after-milliseconds", ms)

    def _agreed(self) -> bool:
        return all(self._knows_all(node) for node in self.sentinels)

    def _knows_all(self, node: Node) -> bool:
        master = node.redis.sentinel_master("main")
        return master["num-other-sentinels"] == 2 and master["num-slaves"] == 1

    @property
    def url(self) -> str:
        """All three."""
        hosts = ",".join(f"{HOST}:{node.port}" for node in self.sentinels)
        return f"redis+sentinel://{hosts}/main"

    def close(self) -> None:
        """Kill all."""
        for node in (*self.sentinels, *self._nodes):
            node.kill()


class Spread:
    """A Cluster of three nodes, to which replicas can be added."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder = program, folder
        self.nodes = [self._node("--cluster-node-timeout", "2000") for _ in range(3)]
        self._replicas: list[Node] = []
        for number, node in enumerate(self.nodes):
            first, last = number * 5461, 16383 if number == 2 else number * 5461 + 5460
            node.redis.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            first_bus = self.nodes[0].redis.config_get("cluster-port")["cluster-port"]
            node.redis.execute_command("CLUSTER", "MEET", HOST, self.nodes[0].port, first_bus)
        wait_for(self._whole, "the Cluster didn't form")
        for node in self.nodes:
            # Nobody dies here: who is silent for a while is on a busy machine.
            node.redis.config_set("cluster-node-timeout", PATIENT_MS)

    def _node(self, *options: str) -> Node:
        clustered = ("--save", "", "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
        return Node(self._program, self._folder, *clustered, *options)

    def replica(self, number: int) -> Node:
        """Add a replica of this node; all nodes know it, and it has all writes until now."""
        master, identity = self.nodes[number], self.identity(self.nodes[number])
        replica = self._node("--repl-diskless-sync-delay", "0")
        self._replicas.append(replica)
        master.redis.config_set("repl-diskless-sync-delay", 0)
        bus = self.nodes[0].redis.config_get("cluster-port")["cluster-port"]
        replica.redis.execute_command("CLUSTER", "MEET", HOST, self.nodes[0].port, bus)
        wait_for(
            lambda: identity in str(replica.redis.execute_command("CLUSTER", "NODES")), "no node"
        )
        wait_for(lambda: _replicates(replica, identity), "no replica")
        wait_for(lambda: replica.redis.info()["master_link_status"] == "up", "no link")
        itself = self.identity(replica)
        # A node that has only heard of it would not believe it later that it is the master.
        wait_for(lambda: all(_follows(one, itself, identity) for one in self.nodes), "unknown")
        wait_for(lambda: master.redis.execute_command("WAIT", 1, 1000), "no copy")
        return replica

    def promote(self, replica: Node, number: int) -> None:
        """Make the replica the master instead of this dead node."""
        replica.redis.execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
        wait_for(lambda: role(replica) == "master", "no failover")
        left = [one for one in self.nodes if one is not self.nodes[number]]
        wait_for(lambda: all(_learns(one, replica, number) for one in left), "nobody knows")
        self.nodes[number] = replica
        self._replicas.remove(replica)

    def move(self, slot: int, giver: Node, taker: Node) -> None:
        """Move a slot from its owner to another node, key by key, as `redis-cli --cluster reshard` does it."""
        taker.redis.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.identity(giver))
        giver.redis.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.identity(taker))
        while keys := giver.redis.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 5):
            giver.redis.execute_command(
                "MIGRATE", HOST, taker.port, "", 0, 60_000, "REPLACE", "KEYS", *keys
            )
        for node in (taker, giver):
            node.redis.execute_command("CLUSTER", "SETSLOT", slot, "NODE", self.identity(taker))

    def _whole(self) -> bool:
        infos = [node.redis.execute_command("CLUSTER", "INFO") for node in self.nodes]
        texts = [
            info if isinstance(info, str) else "\n".join(f"{k}:{v}" for k, v in info.items())
            for info in infos
        ]
        return all("cluster_state:ok" in t and "cluster_known_nodes:3" in t for t in texts)

    @property
    def url(self) -> str:
        """By one node, which tells of the others."""
        return f"redis+cluster://{HOST}:{self.nodes[0].port}"

    def identity(self, node: Node) -> str:
        """A node's id."""
        return str(node.redis.execute_command("CLUSTER", "MYID"))

    def close(self) -> None:
        """Kill all."""
        for node in (*self.nodes, *self._replicas):
            node.kill()


def _replicates(replica: Node, identity: str) -> bool:
    try:
        return bool(replica.redis.execute_command("CLUSTER", "REPLICATE", identity))
    except Exception:  # it doesn't know that node yet
        return False


def _follows(node: Node, identity: str, master: str) -> bool:
    """Whether a node lists `identity` as a connected replica of `master`."""
    lines = str(node.redis.execute_command("CLUSTER", "NODES"))
    return any(
        words[0] == identity and words[3] == master and words[7] == "connected"
        for words in map(str.split, lines.splitlines())
    )


def _learns(node: Node, replica: Node, number: int) -> bool:
    """Whether a node knows the new master. If not, they meet again: a message sent once may have been lost."""
    if _serves(node, replica.port, number):
        return True
    bus = replica.redis.config_get("cluster-port")["cluster-port"]
    node.redis.execute_command("CLUSTER", "MEET", HOST, replica.port, bus)
    return False


def _serves(node: Node, port: int, number: int) -> bool:
    slots: Any = node.redis.execute_command("CLUSTER", "SLOTS")
    return any(
        first == number * 5461 and str(master[1]) == str(port) for first, _, master, *_ in slots
    )
