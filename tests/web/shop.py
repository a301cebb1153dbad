"""A shop's installation: queues in every state, a quarter of an hour of history, and one of every other feature.

`python -m tests.web.shop URL` fills an empty server with it, for a look at the dashboard.
"""

from __future__ import annotations

import json
import random
import re
import sys
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from jobq.client.connection import Client, connect
from jobq.events import attempt_record
from jobq.flows.keys import flow_names
from jobq.flows.state import Edge
from jobq.flows.store import FlowStore
from jobq.flows.types import FlowChange, StoredFlow, StoredStep
from jobq.jobs.codec import encode
from jobq.limits.concurrency_limit import ConcurrencyLimit
from jobq.limits.rate_limit import RateLimit
from jobq.observe.redaction import Redactor
from jobq.protocols.reliable.queue import ReliableQueue
from jobq.protocols.rsmq.client import Rsmq
from jobq.protocols.ruby.queues import ResqueQueue, SidekiqQueue
from jobq.queue import presence
from jobq.queue.admin import tick_values
from jobq.queue.audit_log import Act, AuditLog
from jobq.queue.presence import ChildEntry, RunningJob
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Message
from jobq.schedules.definition import Schedule, checked_schedule, encoded
from jobq.topics.group import TopicGroup
from jobq.topics.topic import Topic
from jobq.web import search
from jobq.web.contents import Contents
from jobq.web.filters import parse
from jobq.web.names import encoded as in_path
from jobq.web.operations.freezing import Freezer
from jobq.web.operations.store import OperationState, OperationStore
from jobq.web.routes import load_pages

HISTORY_S = 14 * 60
JOBS = {
    "mails": ["shop.mail.send_receipt", "shop.mail.send_newsletter"],
    "images": ["shop.images.resize"],
    "payments": ["shop.pay.charge", "shop.pay.refund"],
    "reports": ["shop.reports.monthly"],
    "search": ["shop.search.index_product"],
}
CRON = (
    ("nightly-digest", "30 2 * * *", "shop.reports.monthly"),
    ("reindex", "*/5 * * * *", "shop.search.index_product"),
)
TIMEOUT = (
    "shop.gateway.Timeout: the provider did not answer within 30 s\n"
    'Traceback (most recent call last):\n  File "shop/pay.py", line 88, in charge\n'
    "    reply = gateway.pay(order, cents)\n"
    "shop.gateway.Timeout: the provider did not answer within 30 s"
)
BOUNCED = "smtplib.SMTPRecipientsRefused: 550 5.1.1 <nobody@b.example> unknown user"
#: Example values for the names in paths.
SAMPLES = {
    "queue": "mails", "mid": "order-1042", "job": "shop.pay.charge", "error": "shop.gateway.Timeout",
    "worker": "web-7:4711",
    "schedule": "nightly-digest", "cron": "nightly-digest", "limit": "smtp", "topic": "orders",
    "operation": "0123456789abcdef", "fingerprint": "f1", "group": "billing", "rsmq": "sms", "reliable": "invoices",
    "ruby": "default", "system": "sidekiq", "flow": "import:2026-11-23",
}  # fmt: skip


#: Routes that don't show a page.
NO_PAGES = {"static", "find", "dead_export", "metrics", "healthz", "readyz"}
#: Arguments of special pages: only waiting messages can be edited.
OWN = {"edit_message": {"mid": "mail-139"}}
#: Required query of a page.
QUERIES = {"confirm_end": "?order=drain"}


def flow_step(name: str, queue: str, job: str, *after: str, **more: Any) -> StoredStep:
    """A step; after: `step`, or `step:failed`."""
    edges = tuple(Edge(one.partition(":")[0], one.partition(":")[2] or "done") for one in after)  # type: ignore[arg-type]
    options = json.dumps({"job": job}).encode()
    return StoredStep(
        name,
        **{
            "kind": "step",
            "queue": queue,
            "after": edges,
            "options": options,
            "call": b"{}",
            **more,
        },
    )


def page_paths() -> dict[str, str]:
    """The pages of the shop's dashboard: route -> path."""
    return {
        one.name: _path(one.name, one.path) + QUERIES.get(one.name, "")
        for one in load_pages().declared.values()
        if one.method == "GET" and one.name not in NO_PAGES and not one.path.startswith("/api/")
    }


def _path(route: str, path: str) -> str:
    values = SAMPLES | OWN.get(route, {})
    return re.sub(r"\{([a-z_]+)[^}]*\}", lambda name: in_path(values[name[1]]), path)


class Shop:
    """Fills a server. Times are the server's, so it is the same at whatever hour."""

    def __init__(self, client: Client, seed: int = 7) -> None:
        self.client = client
        self.now = client.clock_ms()
        self.random = random.Random(seed)
        self.queues = {name: Queue(name, client) for name in JOBS}

    def fill(self, scale: int = 1) -> None:
        """Make all data. `scale` multiplies the messages of the history."""
        self.history(scale)
        for name in self.queues:
            self.date_events(name)
        self.present()
        self.workers()
        self.others()
        self.operations()
        self.flows()

    def flows(self) -> None:
        """Run an import up to its reports, a flow that waits for a signal, and a failing flow."""
        at, minute = self.now - 840_000, 60_000
        imported = StoredFlow((
            flow_step("fetch", "reports", "shop.importer.fetch"),
            flow_step("rows", "search", "shop.search.index_product", "fetch", kind="map", source="=fetch"),
            flow_step("images", "images", "shop.images.resize", "fetch"),
            flow_step("report", "reports", "shop.reports.monthly", "rows"),
            flow_step("alert", "mails", "shop.mail.send_receipt", "rows:failed"),
            flow_step("approved", "reports", "", "report", kind="wait"),
            flow_step("publish", "search", "shop.search.index_product", "report", "approved", "images"),
            flow_step("log", "reports", "shop.importer.log", "rows:ended"),
            flow_step("mail", "mails", "shop.mail.send_newsletter", "publish"),
        ), "1", "reports", 7 * 86_400_000)  # fmt: skip
        store = self.flow(SAMPLES["flow"], imported, at)
        self.report(store, "reports", at + minute, ("done", "fetch", 0))
        for chunk in range(4):
            store.reserve("rows", chunk, 250, now=at + minute)
        store.seal("rows", 4, now=at + minute)
        self.report(store, "search", at + 9 * minute, *(("done", "rows", n) for n in range(604)))
        self.report(
            store, "search", at + 10 * minute, *(("dead", "rows", n) for n in range(604, 607))
        )
        self.report(store, "images", at + 8 * minute, ("done", "images", 0))
        onboarding = StoredFlow((
            flow_step("welcome", "mails", "shop.mail.send_receipt"),
            flow_step("confirmed", "mails", "", "welcome", kind="wait", options=b'{"delay":259200}'),
            flow_step("activate", "payments", "shop.pay.charge", "confirmed"),
            flow_step("remind", "mails", "shop.mail.send_newsletter", "confirmed:failed"),
        ), "1", "mails", 86_400_000)  # fmt: skip
        store = self.flow("onboarding:cust-4711", onboarding, at - 60 * minute)
        self.report(store, "mails", at - 59 * minute, ("done", "welcome", 0))
        invoice = StoredFlow((
            flow_step("collect", "reports", "shop.reports.monthly"),
            flow_step("charge", "payments", "shop.pay.charge", "collect"),
            flow_step("send", "mails", "shop.mail.send_receipt", "charge"),
        ), "1", "reports", 86_400_000)  # fmt: skip
        store = self.flow("invoice:2026-10", invoice, at - 300 * minute)
        self.report(store, "reports", at - 299 * minute, ("done", "collect", 0))
        self.report(store, "payments", at - 240 * minute, ("dead", "charge", 0))

    def flow(self, name: str, stored: StoredFlow, at: int) -> FlowStore:
        """Create and begin a flow."""
        store = FlowStore(self.client, name)
        assert store.create(stored._replace(run_id="r1"), now=at) == "created"
        self.client.command("ZADD", flow_names(self.client.namespace), at, name)
        self.report(store, stored.home, at, ("begin", "", 0))
        return store

    def report(self, store: FlowStore, queue: str, at: int, *changes: tuple[str, str, int]) -> None:
        """Say what happened in a queue, and take off what is to be sent."""
        for first in range(0, len(changes), 64):
            told = [FlowChange(*change) for change in changes[first : first + 64]]
            store.sent(store.apply(f"q{queue}", told, now=at).todo, now=at)

    def operations(self) -> None:
        """Preview an operation, and write actions of users into the audit log."""
        store = OperationStore(self.client)
        state = OperationState(
            id=SAMPLES["operation"], verb="revive", by="anna", role="operate", filter="queue:payments error:*timeout*",
            created_at=self.now,
        )  # fmt: skip
        store.add(state)
        contents = Contents(self.client, Redactor(), arguments=True)
        Freezer(store, self.client, contents, state).matching(
            parse(state.filter, keys=search.DEAD_KEYS)
        )
        log = AuditLog(self.client)
        for act in (
            Act("anna", "operate", "pause", "mails"), Act("bert on web-7", "cli", "resume", "mails"),
            Act("anna", "operate", "revive", "payments", "error:*timeout*", 12),
        ):  # fmt: skip
            with log.performing(act):
                pass

    def call(self, job: str, at: int, number: int) -> bytes:
        """Return the call of one order."""
        order = {
            "order": 990 + number,
            "customer": {"mail": f"c{number}@b.example", "card": "4111 1111"},
        }
        return encode(job, [17 + number], order, enqueued_at=at)

    def history(self, scale: int) -> None:
        """Run messages from a quarter of an hour ago on; some fail, in the last minutes more."""
        for step in range(0, HISTORY_S, 20):
            at = self.now - (HISTORY_S - step) * 1000
            for name, jobs in JOBS.items():
                if name == "reports" and step % 120:
                    continue
                count = scale * max(1, int(self.random.gauss(6 if name == "mails" else 3, 1.5)))
                queue = self.queues[name]
                queue.enqueue_many(
                    [(f"{name}-{step}-{n}", self.call(self.random.choice(jobs), at, n)) for n in range(count)], now=at
                )  # fmt: skip
                late = step > HISTORY_S - 300
                taken = queue.dequeue(count, now=at + 400).messages
                ended = [self.ending(name, message, at + 9_000, late) for message in taken]
                if ended:
                    queue.finish(ended, now=at + 9_000)

    def ending(self, name: str, message: Message, at: int, late: bool) -> Ending:
        """Return how one attempt ended."""
        job = JOBS[name][0]
        fails = self.random.random() < (0.45 if name == "payments" and late else 0.03)
        outcome, error, reason = "done", "", ""
        if fails:
            outcome = "dead" if name in ("payments", "mails") else "retry"
            reason = (TIMEOUT if name == "payments" else BOUNCED) if outcome == "dead" else ""
            error = (
                "shop.gateway.Timeout" if name == "payments" else "smtplib.SMTPRecipientsRefused"
            )
        run_us = int(self.random.lognormvariate(12, 0.8))
        record = attempt_record(
            job, 1, 9_000, run_us, run_us // 3, 90_000 + self.random.randrange(30_000), "web-7:4711", error,
            ("f1" if name == "payments" else "f2") if error else "", 240,
        )  # fmt: skip
        return Ending(
            mid=message.mid, token=message.token, outcome=outcome, reason=reason, record=record,  # type: ignore[arg-type]
            backoff=600.0 if outcome == "retry" else None,
        )  # fmt: skip

    def date_events(self, queue: str) -> None:
        """Write the events of a queue as of when they happened; scripts wrote them as of now."""
        stream = f"{self.client.namespace}:{{{queue}}}:events"
        entries = [fields[1] for _, fields in self.client.command("XRANGE", stream, "-", "+")]
        self.client.command("DEL", stream)
        for text in sorted(entries, key=lambda text: int(text.split(b"\x1f")[2])):
            at = int(text.split(b"\x1f")[2])
            self.client.command("XADD", stream, f"{min(at, self.now)}-*", "1", text)

    def present(self) -> None:
        """Make what waits and runs now."""
        mails, now = self.queues["mails"], self.now
        mails.enqueue(self.call("shop.mail.send_receipt", now, 52), mid="order-1042")
        mails.enqueue_many(
            [(f"mail-{n}", self.call(JOBS["mails"][n % 2], now, n)) for n in range(140)]
        )
        mails.enqueue_many(
            [(f"later-{n}", self.call(JOBS["mails"][1], now, n)) for n in range(30)], delay=900
        )
        mails.dequeue(6, lease="1h")
        self.queues["images"].enqueue_many(
            [(f"image-{n}", self.call(JOBS["images"][0], now, n)) for n in range(9)]
        )
        self.queues["images"].dequeue(4, lease="1h")
        reports = self.queues["reports"]
        reports.enqueue_many(
            [(f"report-{n}", self.call(JOBS["reports"][0], now, n)) for n in range(12)]
        )
        reports.admin.pause()

    def workers(self) -> None:
        """Announce three workers, one of them lost."""
        names = sorted(name for jobs in JOBS.values() for name in jobs)
        presence.put_jobs(self.client, names)
        running = {
            4712: tuple(RunningJob("mails", f"mail-{n}", self.now - 12_000 * n) for n in (1, 2)),
            4713: (RunningJob("images", "image-0", self.now - 95_000),),
        }
        for name, ago_s, quiet in (
            ("web-7:4711", 2, False),
            ("web-8:5120", 3, True),
            ("web-9:880", 900, False),
        ):
            facts = {
                "host": name.partition(":")[0], "pid": int(name.partition(":")[2]), "version": "2.4.0",
                "queues": ["mails", "images", "payments", "search"], "slots": 8, "quiet": quiet, "running": 3,
                "jobs": presence.digest_of(names), "lease_ms": 15_000 if ago_s > 60 else 3_600_000,
                "started_at": self.now - 7_200_000,
                "seen_at": self.now - ago_s * 1000,
            }  # fmt: skip
            presence.put_worker(self.client, name, facts)
            children = [
                ChildEntry(pid, "working", 118 << 20, 412, jobs) for pid, jobs in running.items()
            ]
            presence.put_running(self.client, name, children)

    def ticks(self, schedule: Schedule) -> None:
        """Have the ticks of a schedule since it was added; some find the run before not over."""
        admin = self.queues["reports"].admin
        last = self.now - 20_000_000
        for number, tick in enumerate(islice(schedule.ticks.after(last), 60)):
            if tick < self.now:
                overlap = "miss" if number % 23 == 7 else "allow" if number % 11 else "skip"
                admin.tick(tick_values(
                    schedule.name, tick, last, schedule.mid(tick), self.call(schedule.job, tick, number),
                    due_ms=tick, overlap=overlap, missed=0, now=tick + self.random.randrange(60, 900)))  # fmt: skip
                last = tick

    def others(self) -> None:
        """Make one of every other feature."""
        client = self.client
        for name, cron, job in CRON:
            made = checked_schedule(name, job, cron, {"tz": "Europe/Berlin"})
            self.queues["reports"].admin.schedule(
                "add", name, encoded(made), now=self.now - 20_000_000
            )
            self.ticks(made)
        RateLimit("smtp", "20/m", client=client).try_acquire()
        with ConcurrencyLimit("erp", 4, client=client).slot():
            pass
        for number in range(3):
            holder = f"token{number} web-7:471{number} shop.erp.book"
            client.command("ZADD", "jobq:limit:{erp}:holders", self.now + 3_600_000, holder)
        imports = Queue("imports", client)
        imports.register()
        for number in range(14):
            key = ("acme", "globex", "initech")[number % 5 % 3]
            imports.enqueue(
                self.call("shop.imports.load", self.now, number), mid=f"import-{number}", key=key
            )
        imports.rule("acme", max=2, weight=3)
        imports.dequeue(3, lease="1h")
        imports.hold("initech", "30m")
        orders = Topic("orders", client)
        orders.append_many([f'{{"order": {n}}}'.encode() for n in range(40)])
        TopicGroup(orders.name, "billing", client).subscribe()
        rsmq = Rsmq(client=client)
        rsmq.create_queue("sms")
        rsmq.send_message("sms", "hello")
        ReliableQueue(client).push("invoices", "one", "two")
        SidekiqQueue("default", client).push("HardWorker", [1, "x"])
        ResqueQueue("low", client).push("Archive", [7])


if __name__ == "__main__":
    began = datetime.now(UTC)
    Shop(connect(sys.argv[1])).fill(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    print(f"filled in {(datetime.now(UTC) - began).total_seconds():.1f} s")
