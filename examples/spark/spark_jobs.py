"""Declare the job that the other files of this example enqueue and count."""

from __future__ import annotations

from jobq import job


@job(name="shop.remind", queue="mail")
def remind(customer: int, cart: str) -> str:
    """Return the text of a reminder; raise an error for some carts."""
    if customer % 10 == 9:
        raise LookupError(f"no cart {cart}")
    return f"{customer}: your cart {cart} waits"
