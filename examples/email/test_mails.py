"""Test retries and rejections without a mail server."""

from __future__ import annotations

import smtplib
from email.message import EmailMessage
from typing import Any, ClassVar

import pytest

from examples.email.mails import announce, send_newsletter, send_welcome
from jobq.testing import running


class Mailer:
    """Replace smtplib.SMTP: record each mail, or reject addresses with an error code."""

    sent: ClassVar[list[EmailMessage]] = []
    refused: ClassVar[dict[str, int]] = {}

    def __init__(self, *_: object, **__: object) -> None: ...
    def __enter__(self) -> Mailer:
        return self

    def __exit__(self, *_: object) -> None: ...
    def send_message(self, message: EmailMessage) -> None:
        code = self.refused.get(message["To"])
        if code:
            raise smtplib.SMTPRecipientsRefused({message["To"]: (code, b"refused")})
        self.sent.append(message)


@pytest.fixture(autouse=True)
def mailer(monkeypatch: pytest.MonkeyPatch) -> type[Mailer]:
    """Replace smtplib.SMTP with `Mailer`, and forget earlier mails."""
    Mailer.sent, Mailer.refused = [], {}
    monkeypatch.setattr(smtplib, "SMTP", Mailer)
    return Mailer


def test_mail_that_must_wait_goes_out_later(jobq: Any, mailer: type[Mailer]) -> None:
    mailer.refused["ada@example.org"] = 450
    send_welcome.enqueue("ada@example.org", "Ada")
    with pytest.raises(smtplib.SMTPRecipientsRefused):
        jobq.drain()
    mailer.refused.clear()
    assert jobq.drain().done == 1
    assert [message["To"] for message in mailer.sent] == ["ada@example.org"]


def test_refused_address_is_dead_at_once(mailer: type[Mailer]) -> None:
    mailer.refused["nobody@example.org"] = 550
    ran = running(attempt=1).run(send_welcome, "nobody@example.org", "Nobody")
    assert (ran.outcome, ran.retry_in) == ("dead", None)
    assert "refused for good: 550" in ran.reason


def test_issue_goes_to_each_reader_once(jobq: Any, mailer: type[Mailer]) -> None:
    readers = ["a@example.org", "b@example.org"]
    announce(7, readers)
    announce(7, readers)
    jobq.assert_enqueued(send_newsletter, kwargs={"issue": 7}, queue="low", count=2)
    jobq.drain()
    announce(7, readers)
    assert jobq.drain().done == 0
    assert sorted(message["To"] for message in mailer.sent) == readers
