"""The job that the other files of this example enqueue and count."""

from __future__ import annotations

from jobq import job


@job(name="shop.remind", queue="mail")
def remind(customer: int, cart: str) -> str:
    """What a mail to a customer would say; some carts can't be found."""
    if customer % 10 == 9:
        raise LookupError(f"no cart {cart}")
    return f"{customer}: your cart {cart} waits"
