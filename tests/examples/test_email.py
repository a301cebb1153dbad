"""`examples/email`, with a mail server that answers as the test says."""

from __future__ import annotations

import socketserver
import threading

import pytest

from jobq.queue.queue import Queue


class Mailbox(socketserver.ThreadingTCPServer):
    """As much SMTP as smtplib speaks. Each address may be refused a number of times, or for good."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Session)
        self.mails = []
        self.temporary = {}
        self.refused = set()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Session(socketserver.StreamRequestHandler):
    """One client."""

    def handle(self):
        self._say("220 ready")
        for raw in self.rfile:
            line = raw.decode().strip()
            verb = line[:4].upper()
            if verb == "RCPT":
                self._recipient(line[line.index("<") + 1 : line.index(">")])
            elif verb == "DATA":
                self._say("354 go on")
                self.server.mails.append((self.address, self._body()))
                self._say("250 taken")
            elif verb == "QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 ok")

    def _recipient(self, address):
        self.address = address
        if address in self.server.refused:
            self._say("550 no such user")
        elif self.server.temporary.get(address, 0):
            self.server.temporary[address] -= 1
            self._say("450 try later")
        else:
            self._say("250 ok")

    def _body(self):
        lines = []
        for raw in self.rfile:
            if raw == b".\r\n":
                break
            lines.append(raw.decode())
        return "".join(lines)

    def _say(self, text):
        self.wfile.write(text.encode() + b"\r\n")


@pytest.fixture
def mailbox():
    made = Mailbox()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def worker(run, mailbox):
    port = str(mailbox.server_address[1])
    return run(
        "-m", "jobq", "worker", "--import", "examples.email.mails", "--queues", "high,low",
        "--processes", "1", env={"SMTP_HOST": "127.0.0.1", "SMTP_PORT": port},
    )  # fmt: skip


def test_mail_is_sent_after_the_server_was_busy_once(client, mailbox, worker, until):
    from examples.email.mails import send_welcome

    mailbox.temporary["ada@example.org"] = 1
    receipt = send_welcome.enqueue("ada@example.org", "Ada")
    [(address, text)] = until(lambda: mailbox.mails)
    assert address == "ada@example.org"
    assert "Welcome, Ada" in text
    assert receipt.mid in text


def test_refused_address_is_dead_at_once_with_its_reason(client, mailbox, worker, until):
    from examples.email.mails import send_welcome

    mailbox.refused.add("nobody@example.org")
    send_welcome.enqueue("nobody@example.org", "Nobody")
    queue = Queue("low", client)
    [dead] = until(queue.admin.dead)
    assert "refused for good: 550 no such user" in dead.reason
    assert dead.attempts == 1


def test_newsletter_goes_out_once_however_often_it_is_announced(client, mailbox, worker, until):
    from examples.email.mails import announce

    readers = ["a@example.org", "b@example.org"]
    first = announce(7, readers)
    until(lambda: len(mailbox.mails) == 2)
    until(lambda: all(receipt.status().word == "done-with-backoff" for receipt in first))
    assert [receipt.action for receipt in announce(7, readers)] == ["exists", "exists"]
    assert sorted(address for address, _ in mailbox.mails) == readers
