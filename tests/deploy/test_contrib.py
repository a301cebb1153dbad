"""The units, images and manifests of contrib: they are valid, and what they start works with their settings.

No Docker and no Kubernetes are needed: processes with the same command, settings and probes stand in for containers.
"""

from __future__ import annotations

import configparser
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click
import pytest

from jobq.cli.app import app
from jobq.config import WorkerSettings, duration_s
from jobq.outbox.tables import table_of
from jobq.queue.queue import Queue
from jobq.web.access.users import add_token
from tests import tools
from tests.client.deployments import free_port
from tests.lifecycle.conftest import DEADLINE_S, until

yaml = tools.library("yaml")
jsonschema = tools.library("jsonschema")

ROOT = Path(__file__).resolve().parents[2]
CONTRIB = ROOT / "contrib"
UNITS = sorted((CONTRIB / "systemd").glob("*.service"))
MANIFESTS = sorted((CONTRIB / "kubernetes").glob("*.yaml"))
BIN = Path(sys.executable).parent
DEFAULTS = WorkerSettings()

pytestmark = pytest.mark.one_server


class Start(NamedTuple):
    """How something is started: its words behind `jobq`, its settings, and how long it may take to end."""

    words: list[str]
    env: dict[str, str]
    grace_s: float


def unit(path: Path) -> configparser.SectionProxy:
    """The section [Service] of a unit."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser["Service"]


def of_unit(name: str) -> Start:
    service = unit(CONTRIB / "systemd" / name)
    command = shlex.split(service["ExecStart"])
    assert command[0] == "/srv/%i/.venv/bin/jobq"
    return Start(command[1:], {"JOBQ_IMPORT": "hello"}, float(service["TimeoutStopSec"]))


def dockerfile() -> list[tuple[str, str]]:
    """The instructions of the last stage, each with its text."""
    text = (CONTRIB / "docker" / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    parts = [line.partition(" ") for line in lines]
    stages = [i for i, (word, _, _) in enumerate(parts) if word == "FROM"]
    return [(word, rest) for word, _, rest in parts[stages[-1] :]]


def image_env() -> dict[str, str]:
    """What the image sets, without its path."""
    pairs = [
        pair.partition("=") for word, rest in dockerfile() if word == "ENV" for pair in rest.split()
    ]
    return {name: value for name, _, value in pairs if name != "PATH"}


def of_image() -> Start:
    found = dict(dockerfile())
    words = json.loads(found["ENTRYPOINT"]) + json.loads(found["CMD"])
    assert words[0] == "jobq"
    return Start(words[1:], {**image_env(), "JOBQ_IMPORT": "hello"}, 10)


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONTRIB / "docker" / "compose.yaml").read_text())
    return found


def of_compose(name: str) -> Start:
    service = compose()["services"][name]
    words = service.get("command") or json.loads(dict(dockerfile())["CMD"])
    return Start(
        words, {**image_env(), **service["environment"]}, duration_s(service["stop_grace_period"])
    )


def manifests() -> list[dict[str, Any]]:
    return [
        one
        for path in MANIFESTS
        if path.name != "kustomization.yaml"
        for one in yaml.safe_load_all(path.read_text())
    ]


def pods() -> list[tuple[str, dict[str, Any]]]:
    """The name and the pod of each that starts some."""
    found = []
    for one in manifests():
        spec = one.get("spec", {})
        spec = spec["jobTemplate"]["spec"] if one["kind"] == "CronJob" else spec
        if "template" in spec:
            found.append((one["metadata"]["name"], spec["template"]["spec"]))
    return found


def ours(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """The containers of a pod that run jobq, without those that prepare or guard it."""
    return [one for one in pod["containers"] if one["image"] == "jobq-app"]


def of_pod(name: str) -> Start:
    pod = dict(pods())[name]
    [container] = ours(pod)
    shared = {
        one["metadata"]["name"]: one.get("data") or one["stringData"]
        for one in manifests()
        if one["kind"] in ("ConfigMap", "Secret")
    }
    env: dict[str, str] = dict(image_env())
    for source in container["envFrom"]:
        [named] = source.values()
        env |= shared[named["name"]]
    env |= {one["name"]: one["value"] for one in container.get("env", ())}
    return Start(container["args"], env, pod.get("terminationGracePeriodSeconds", 30))


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_finds_nothing_wrong_with_a_unit(path, tmp_path):
    if shutil.which("systemd-analyze") is None:
        tools.not_run("not run: needs systemd-analyze")
    text = (
        path.read_text()
        .replace("/srv/%i/.venv/bin/jobq", str(BIN / "jobq"))
        .replace("User=%i", "User=root")
    )
    (tmp_path / path.name).write_text(text)
    instance = path.name.replace("@", "@shop")
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", "--man=no", str(tmp_path / instance)],
        capture_output=True, text=True,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:/lib/systemd/system:/usr/lib/systemd/system"},
    )  # fmt: skip
    # What it says of the machine's units, or of a machine without systemd, is not about this one.
    lines = (checked.stdout + checked.stderr).splitlines()
    assert [line for line in lines if "jobq-" in line] == []


def test_units_wait_long_enough_and_restart_what_ends():
    for path in UNITS:
        service = unit(path)
        assert float(service["TimeoutStopSec"]) >= DEFAULTS.shutdown_timeout_s + 10
        assert service["Restart"] == "always" and service["NoNewPrivileges"] == "yes"
    worker = unit(CONTRIB / "systemd" / "jobq-worker@.service")
    assert (worker["Type"], worker["KillMode"], worker["OOMPolicy"]) == (
        "notify",
        "mixed",
        "continue",
    )


def test_image_runs_as_nobody_and_gets_term():
    words = dict(dockerfile())
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", words["USER"]) and words["STOPSIGNAL"] == "SIGTERM"
    for instruction in ("ENTRYPOINT", "CMD"):
        assert isinstance(json.loads(words[instruction]), list)
    check = json.loads(words["HEALTHCHECK"].partition("CMD ")[2])
    assert check == ["jobq", "worker", "--check"]
    project = (ROOT / "pyproject.toml").read_text()
    extras = re.search(r"ARG EXTRAS=(\S+)", (CONTRIB / "docker" / "Dockerfile").read_text())
    assert extras and all(f"\n{one} = [" in project for one in extras[1].split(","))
    for copied in re.findall(r"ARG APP=(\S+)", (CONTRIB / "docker" / "Dockerfile").read_text()):
        assert (ROOT / copied).is_dir()


def test_compose_keeps_messages_and_waits_for_jobs():
    found = compose()
    for name, service in found["services"].items():
        assert (
            "image" in service
            or (CONTRIB / "docker" / service["build"]["context"]).resolve() == ROOT
        )
        assert set(service.get("depends_on", ())) <= set(found["services"]), name
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in found["volumes"]
        if "build" in service:
            assert duration_s(service["stop_grace_period"]) >= DEFAULTS.shutdown_timeout_s + 10
    server = found["services"]["valkey"]["command"]
    assert tuple(
        server[server.index(f"--{n}") + 1] for n in ("maxmemory-policy", "appendonly")
    ) == ("noeviction", "yes")


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_fit_the_schemas_of_kubernetes(path):
    stored = json.loads((Path(__file__).parent / "kubernetes.json").read_text())
    if path.name == "kustomization.yaml":
        listed = yaml.safe_load(path.read_text())["resources"]
        assert sorted(listed) == sorted(one.name for one in MANIFESTS if one != path)
        return
    for one in yaml.safe_load_all(path.read_text()):
        wanted = {"$ref": f"#/$defs/{stored['kinds'][one['kind']]}", "$defs": stored["$defs"]}
        errors = jsonschema.Draft202012Validator(wanted).iter_errors(one)
        assert [f"{error.json_path}: {error.message}" for error in errors] == []
    broken = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replica": 1}}
    wanted = {"$ref": f"#/$defs/{stored['kinds']['Deployment']}", "$defs": stored["$defs"]}
    assert len(list(jsonschema.Draft202012Validator(wanted).iter_errors(broken))) >= 2


@pytest.mark.parametrize(("name", "pod"), pods(), ids=[name for name, _ in pods()])
def test_pods_have_least_rights_and_their_secrets(name, pod):
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    known = {one["metadata"]["name"] for one in manifests()}
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        limited = container["securityContext"]
        assert (
            limited["readOnlyRootFilesystem"] is True
            and limited["allowPrivilegeEscalation"] is False
        )
        assert limited["capabilities"] == {"drop": ["ALL"]}
        assert (
            "memory" in container["resources"]["limits"]
            and "cpu" not in container["resources"]["limits"]
        )
        for source in container.get("envFrom", ()):
            assert next(iter(source.values()))["name"] in known
    for volume in pod.get("volumes", ()):
        assert "secret" not in volume or volume["secret"]["secretName"] in known
    for container in ours(pod):
        parses(container["args"])


def parses(words: list[str]) -> None:
    """The words are a command of jobq."""
    group: Any = app
    with app.make_context("jobq", [*words, "--help"], resilient_parsing=True) as ctx:
        for depth, word in enumerate(words):
            group = group.get_command(ctx, word)
            assert group is not None, words
            if not isinstance(group, click.Group):
                rest = words[depth + 1 :]
                group.make_context(
                    word, [*rest, *(["--dsn", "sqlite:///x"] if words[0] == "outbox" else [])]
                )
                return
    assert group.invoke_without_command, words


def test_pod_of_the_worker_has_time_and_memory():
    pod, start = dict(pods())["jobq-worker"], of_pod("jobq-worker")
    assert start.grace_s >= duration_s(start.env["JOBQ_WORKER_SHUTDOWN_TIMEOUT"]) + 10
    [limit] = [one["resources"]["limits"]["memory"] for one in pod["containers"]]
    needed = (
        int(start.env["JOBQ_WORKER_MAX_MEMORY"]) * int(start.env["JOBQ_WORKER_PROCESSES"]) * 1.3
    )
    assert limit == "1Gi" and needed < 1024
    [deployment] = [
        one
        for one in manifests()
        if one["metadata"]["name"] == "jobq-worker" and one["kind"] == "Deployment"
    ]
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def labelled(selector: dict[str, Any]) -> list[dict[str, Any]]:
    """The workloads whose pods a selector means."""
    key, rules = "app.kubernetes.io/name", selector.get("matchExpressions", ())
    names = {selector[key]} if key in selector else set(selector.get("matchLabels", {}).values())
    names |= {value for rule in rules if rule["operator"] == "In" for value in rule["values"]}
    found = [
        one
        for one in manifests()
        if one["kind"] == "Deployment"
        and one["spec"]["template"]["metadata"]["labels"][key] in names
    ]
    assert len(found) == len(names), selector
    return found


def ports(workload: dict[str, Any]) -> dict[str, int]:
    """The ports of a pod by their names."""
    containers = workload["spec"]["template"]["spec"]["containers"]
    return {port["name"]: port["containerPort"] for one in containers for port in one["ports"]}


def test_policies_and_services_name_ports_that_exist():
    for one in manifests():
        spec = one.get("spec", {})
        if one["kind"] == "NetworkPolicy":
            open_ports = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
            for workload in labelled(spec["podSelector"]):
                assert open_ports == set(ports(workload).values())
        elif one["kind"] == "Service":
            [workload] = labelled(spec["selector"])
            assert {port["targetPort"] for port in spec["ports"]} <= set(ports(workload))


#: What the Prometheus Operator knows of the fields that are used: strict, as its own schemas are.
ENDPOINT = {
    "type": "object", "additionalProperties": False, "required": ["port", "path"],
    "properties": {
        "port": {"type": "string"}, "path": {"type": "string"}, "interval": {"pattern": "^[0-9]+s$"},
        "honorLabels": {"type": "boolean"},
        "authorization": {
            "type": "object", "additionalProperties": False,
            "properties": {
                "type": {"type": "string"},
                "credentials": {
                    "type": "object", "additionalProperties": False, "required": ["key"],
                    "properties": {"name": {"type": "string"}, "key": {"type": "string"}},
                },
            },
        },
    },
}  # fmt: skip


def test_prometheus_scrapes_what_serves_metrics():
    text = (CONTRIB / "prometheus" / "monitors.yaml").read_text()
    pods_, services = yaml.safe_load_all(text)
    assert (pods_["kind"], services["kind"]) == ("PodMonitor", "ServiceMonitor")
    for one, field in ((pods_, "podMetricsEndpoints"), (services, "endpoints")):
        assert set(one["spec"]) == {"selector", field}
        for endpoint in one["spec"][field]:
            jsonschema.Draft202012Validator(ENDPOINT).validate(endpoint)
    [pod_end], [service_end] = pods_["spec"]["podMetricsEndpoints"], services["spec"]["endpoints"]
    assert {one["metadata"]["name"] for one in labelled(pods_["spec"]["selector"])} == {
        "jobq-worker", "jobq-relay",
    }  # fmt: skip
    assert all(pod_end["port"] in ports(one) for one in labelled(pods_["spec"]["selector"]))
    [service] = [one for one in manifests() if one["kind"] == "Service"]
    assert services["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert service_end["port"] in {port["name"] for port in service["spec"]["ports"]}
    secrets = {one["metadata"]["name"]: one for one in manifests() if one["kind"] == "Secret"}
    credentials = service_end["authorization"]["credentials"]
    assert credentials["key"] in secrets[credentials["name"]]["stringData"]


def test_kustomize_takes_the_folder():
    if shutil.which("kubectl") is None:
        tools.not_run("not run: needs kubectl", packaged=False)
    made = subprocess.run(
        ["kubectl", "kustomize", str(CONTRIB / "kubernetes")], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    assert {one["kind"] for one in yaml.safe_load_all(made.stdout)} == {
        one["kind"] for one in manifests()
    }
    assert "image: jobq-app" not in made.stdout


class Container:
    """A process in place of a container."""

    def __init__(self, start: Start, url: str, folder: Path, env: dict[str, str]) -> None:
        self.start = start
        kept = {k: v for k, v in os.environ.items() if not k.startswith("JOBQ")}
        self.env = {**kept, **start.env, "JOBQ_URL": url, **env}
        self.log = (folder / "log").open("wb")
        self.folder = folder
        self.process = subprocess.Popen(
            [BIN / "jobq", *start.words], cwd=folder, env=self.env, stdout=self.log, stderr=self.log,
        )  # fmt: skip

    def said(self) -> str:
        return (self.folder / "log").read_text()

    def stop(self) -> None:
        """TERM, and its end within the time that it has."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(DEADLINE_S) == 0, self.said()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


@pytest.fixture
def contain(server: Any, tmp_path: Path) -> Iterator[Callable[..., Container]]:
    """contain(start, env): its process, with the example hello in its folder."""
    running: list[Container] = []
    shutil.copy(ROOT / "examples" / "hello" / "hello.py", tmp_path)

    def begin(start: Start, **env: str) -> Container:
        running.append(Container(start, server.url, tmp_path, env))
        return running[-1]

    yield begin
    for one in running:
        one.close()


def answer(port: int, page: str) -> int:
    """The status of a page; 0 while nothing listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=60) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


def test_worker_of_compose_gets_ready_runs_jobs_and_ends_by_term(contain, client):
    start = of_compose("worker")
    assert start.words == of_image().words
    port = free_port()
    host = start.env["JOBQ_WORKER_HEALTH"].rpartition(":")[0]
    made = contain(start, JOBQ_WORKER_HEALTH=f"{host}:{port}", JOBQ_WORKER_PROCESSES="1")
    until(lambda: answer(port, "/readyz") == 200, made.said())
    assert answer(port, "/healthz") == 200
    check = json.loads(dict(dockerfile())["HEALTHCHECK"].partition("CMD ")[2])
    assert (
        subprocess.run([BIN / check[0], *check[1:]], env=made.env, capture_output=True).returncode
        == 0
    )
    queue = Queue("default", client)
    queue.enqueue(b'{"job":"greet","args":["you"]}', mid="m")
    stored = until(lambda: client.command("LINDEX", queue.result_key("m"), 0))
    assert json.loads(stored)["ok"] == "Hello, you!"
    made.stop()
    assert answer(port, "/readyz") == 0


def test_relay_gets_ready_and_ends_by_term(contain, client, tmp_path):
    start = of_pod("jobq-relay")
    assert start.words == of_compose("relay").words
    port, dsn = free_port(), f"sqlite:///{tmp_path}/shop.db"
    host = start.env["JOBQ_OUTBOX_RELAY_HEALTH"].rpartition(":")[0]
    made = contain(start, JOBQ_OUTBOX_RELAY_HEALTH=f"{host}:{port}", JOBQ_OUTBOX_DSN=dsn)
    # There are no tables yet.
    until(lambda: answer(port, "/readyz") == 503, made.said())
    assert answer(port, "/healthz") == 200
    with closing(table_of(dsn)) as table:
        table.create()
    until(lambda: answer(port, "/readyz") == 200, made.said())
    made.stop()


def test_rolling_restart_loses_and_doubles_nothing(contain, client, tmp_path):
    """As Kubernetes does it: a new pod is ready before an old one gets TERM; one that drains isn't ready."""
    (tmp_path / "rolling.py").write_text(ROLLING)
    start, enough, sent = of_pod("jobq-worker"), threading.Event(), []
    queue = Queue("default", client)

    def produce() -> None:
        while not enough.wait(0.005):
            queue.enqueue(b'{"job":"rolling.note","args":[%d]}' % len(sent))
            sent.append(len(sent))

    def begun() -> tuple[Container, int]:
        port = free_port()
        made = contain(
            start,
            JOBQ_IMPORT="rolling",
            JOBQ_WORKER_HEALTH=f"0.0.0.0:{port}",
            JOBQ_WORKER_PROCESSES="1",
        )
        until(lambda: answer(port, "/readyz") == 200, made.said())
        return made, port

    producer = threading.Thread(target=produce)
    old = [begun(), begun()]
    producer.start()
    try:
        for made, port in old:
            begun()
            made.process.send_signal(signal.SIGTERM)
            answers = []
            while made.process.poll() is None:
                answers.append(answer(port, "/readyz"))
            assert made.process.returncode == 0, made.said()
            assert [one for one in answers if one == 200] == answers[: answers.count(200)]
    finally:
        enough.set()
        producer.join()
    ran = tmp_path / "ran"
    until(lambda: ran.exists() and len(ran.read_text().split()) >= len(sent))
    assert sorted(map(int, ran.read_text().split())) == sent


ROLLING = """
import os
import time

from jobq import job


@job
def note(number):
    time.sleep(0.002)
    with open("ran", "a") as file:
        file.write(f"{number}\\n")
"""


def test_unit_of_the_dashboard_asks_for_a_login(contain):
    port = free_port()
    made = contain(of_unit("jobq-web@.service"), JOBQ_WEB_BIND=f"127.0.0.1:{port}")
    until(lambda: answer(port, "/login") == 200, made.said())
    assert answer(port, "/api/v1/queues") == 401
    made.process.terminate()
    # systemd takes an end by TERM for a clean one.
    assert made.process.wait(DEADLINE_S) in (0, -signal.SIGTERM), made.said()


def asked(port: int, page: str, host: str, source: str, **headers: str) -> http.client.HTTPResponse:
    """The reply to a request from an address of this machine."""
    with closing(
        http.client.HTTPConnection("127.0.0.1", port, DEADLINE_S, source_address=(source, 0))
    ) as connection:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", page, headers={"Host": host, **named})
        reply = connection.getresponse()
        reply.read()
        return reply


def test_pod_of_the_dashboard_believes_its_proxy_alone(contain, tmp_path):
    """Requests from 127.0.0.1 stand in for the proxy in the pod, others of the loopback for other pods."""
    start, pod, port = of_pod("jobq-web"), dict(pods())["jobq-web"], free_port()
    [first] = pod["initContainers"]
    secret, users = tmp_path / "secret.json", tmp_path / "users.json"
    secret.touch(mode=0o600)
    [example] = [one for one in manifests() if one["metadata"]["name"] == "jobq-web-users"]
    secret.write_text(example["stringData"]["users.json"])
    token = add_token(secret, "prometheus", "read", False, None)
    secret.chmod(0o440)
    *copy, source, target = first["command"]
    assert (source, target) == ("/run/secret/users.json", start.env["JOBQ_WEB_USERS"])
    subprocess.run([*copy, secret, users], check=True)
    host = start.env["JOBQ_WEB_BIND"].rpartition(":")[0]
    made = contain(
        start,
        JOBQ_WEB_BIND=f"{host}:{port}",
        JOBQ_WEB_USERS=str(users),
        JOBQ_WEB_URL="",
        JOBQ_WEB_URL_OPERATE="",
        JOBQ_FUNCTIONS="0",
    )
    until(lambda: answer(port, "/readyz") == 200, made.said())
    [proxy] = [one for one in pod["containers"] if one["name"] == "oauth"]
    assert f"--upstream=http://127.0.0.1:{pod_port(pod, 'web')}" in proxy["args"]
    [public] = [
        urlsplit(one.partition("=")[2]).hostname
        for one in proxy["args"]
        if one.startswith("--redirect-url=")
    ]
    named = {
        start.env["JOBQ_WEB_AUTH_HEADER"].replace("-", "_"): "anna@example.com",
        "X_Forwarded_Proto": "https",
    }
    assert public in start.env["JOBQ_WEB_HOST"].split()
    assert asked(port, "/", public, "127.0.0.1", **named).status == 200
    assert asked(port, "/", public, "127.0.0.2", **named).status == 303
    assert asked(port, "/", public, "127.0.0.1").status == 303
    assert asked(port, "/", "evil.example", "127.0.0.1", **named).status == 421
    bearer = {"Authorization": f"Bearer {token}"}
    assert asked(port, "/metrics", "10.1.2.3:8700", "127.0.0.2", **bearer).status == 200
    assert asked(port, "/metrics", "10.1.2.3:8700", "127.0.0.2", **named).status == 421
    keda = (CONTRIB / "keda" / "metrics-api.yaml").read_text()
    [service] = re.findall(r"url: \"http://([^/]+)/", keda)
    page = "/api/v1/autoscale?queues=high"
    assert asked(port, page, service, "127.0.0.2", **bearer).status == 200
    assert asked(port, page, service, "127.0.0.2", **named).status == 401
    made.process.terminate()
    assert made.process.wait(DEADLINE_S) in (0, -signal.SIGTERM), made.said()


def pod_port(pod: dict[str, Any], name: str) -> int:
    """The port of a container with one."""
    [port] = next(one["ports"] for one in pod["containers"] if one["name"] == name)
    return int(port["containerPort"])


def test_unit_of_the_worker_notifies_systemd(contain, short_folder):
    path = short_folder / "notify"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.settimeout(DEADLINE_S)
        listening.bind(str(path))
        start = of_unit("jobq-worker@.service")
        made = contain(
            start, NOTIFY_SOCKET=str(path), WATCHDOG_USEC="200000", JOBQ_WORKER_PROCESSES="1"
        )
        seen = ""
        while "READY=1" not in seen or "WATCHDOG=1" not in seen:
            seen += listening.recv(4096).decode()
        made.process.send_signal(signal.SIGHUP)
        made.stop()
        while "STOPPING=1" not in seen:
            seen += listening.recv(4096).decode()
    path.unlink()
