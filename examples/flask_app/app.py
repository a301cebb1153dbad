"""Enqueue jobs from a view, run jobs in the application context, and add the command `flask jobq`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import click
from flask import Flask, abort, current_app, request, url_for
from flask.typing import ResponseReturnValue

from jobq import Context, job, middleware
from jobq.cli import main
from jobq.errors import JobFailedError, ResultNotStoredError, ResultTimeoutError


class AppContext:
    """Run each attempt in an application context, so that `current_app` and extensions work in jobs."""

    def __init__(self, flask: Flask) -> None:
        self.flask = flask

    def run(self, context: Context, next: Callable[[], Any]) -> Any:
        """Run one attempt of a sync job in the application context."""
        with self.flask.app_context():
            return next()

    async def arun(self, context: Context, next: Callable[[], Awaitable[Any]]) -> Any:
        """Run one attempt of an async job in the application context."""
        with self.flask.app_context():
            return await next()


app = Flask(__name__)
app.config["GREETING"] = "Hello"
app.config.from_prefixed_env()  # reads FLASK_GREETING
middleware.add(AppContext(app))


@job(queue="letters", name="letter", result_ttl="1h")
def letter(name: str) -> str:
    """Return the text of a letter."""
    if not name:
        raise ValueError("a letter needs a name")
    return f"{current_app.config['GREETING']}, {name}!"


@app.post("/letters")
def create() -> ResponseReturnValue:
    """Enqueue a letter, and return its id and URL."""
    receipt = letter.options(retries=0).enqueue(str(request.get_json()["name"]))
    return {"mid": receipt.mid, "href": url_for("show", mid=receipt.mid)}, 202


@app.get("/letters/<mid>")
def show(mid: str) -> ResponseReturnValue:
    """Return the result, or the status if no result arrives within `wait` seconds."""
    receipt = letter.receipt(mid)
    try:
        wait = request.args.get("wait", 0.0, type=float)
        return {"status": "done", "result": receipt.result(timeout=min(wait, 30))}
    except ResultTimeoutError:
        return {"status": receipt.status().word}
    except ResultNotStoredError:
        abort(404, f"there is no letter {mid}, or no longer")
    except JobFailedError as failed:
        abort(500, str(failed))


@click.command("jobq", add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def commands(words: tuple[str, ...]) -> None:
    """Run a jobq command, such as `flask jobq worker`."""
    raise SystemExit(main(words))


app.cli.add_command(commands)
