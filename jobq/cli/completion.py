"""`jobq completion`: print what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from jobq.cli.app import COMPLETION
from jobq.cli.session import Session, command


@command("completion", "bash", "zsh", "fish")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(session: Session, shell: str) -> None:
    """Print a script that completes commands in bash, zsh or fish."""
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    made = found(root, {}, "jobq", COMPLETION)
    script = (made.source_template % made.source_vars()).strip()
    session.say({"shell": shell, "script": script}, *script.splitlines())
