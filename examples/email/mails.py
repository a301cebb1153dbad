"""Send mail in jobs, retry temporary errors, and send each newsletter once per reader."""

from __future__ import annotations

import os
import smtplib
from email.message import EmailMessage

from jobq import Dead, Receipt, current, job, retry

POLICY = retry.exponential(base=2, max=600)


@job(queue="low", name="mail.welcome", retries=8, retry=POLICY, timeout=30)
def send_welcome(address: str, name: str) -> None:
    """Send a welcome mail to a new user."""
    _send(address, f"Welcome, {name}", f"Dear {name},\n\nit is good to have you.\n")


@job(queue="low", name="mail.newsletter", retries=8, retry=POLICY, timeout=30)
def send_newsletter(address: str, issue: int) -> None:
    """Send one newsletter issue to one reader."""
    _send(address, f"Newsletter {issue}", f"This is issue {issue}.\n")


def announce(issue: int, addresses: list[str]) -> list[Receipt[None]]:
    """Enqueue an issue for each address, at most once a day, and return the receipts."""
    return [
        send_newsletter.options(mid=f"newsletter-{issue}:{address}", until="1d").enqueue(
            address, issue
        )
        for address in addresses
    ]


def _send(address: str, subject: str, text: str) -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "hello@example.org", address, subject
    # After a crash the mail may be sent twice; the same Message-ID marks it as a duplicate.
    message["Message-ID"] = f"<{current().mid}.{current().generation}@example.org>"
    message.set_content(text)
    host, port = os.environ.get("SMTP_HOST", "localhost"), int(os.environ.get("SMTP_PORT", "25"))
    try:
        with smtplib.SMTP(host, port, timeout=10) as server:
            server.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        code, words = error.recipients[address]
        if code >= 500:
            raise Dead(
                f"{address} is refused for good: {code} {words.decode(errors='replace')}"
            ) from error
        raise
