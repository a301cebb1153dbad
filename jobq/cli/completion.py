"""`jobq completion`: print shell completion for commands, options and flow ids."""

from __future__ import annotations

import os

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from jobq.cli.app import COMPLETION
from jobq.cli.session import Session, command


@command("completion", "bash", "zsh", "fish")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(session: Session, shell: str) -> None:
    """Print a shell completion script for commands, options and flow ids."""
    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    made = kind(root, {}, "jobq", COMPLETION)
    script = (made.source_template % made.source_vars()).strip()
    session.say({"shell": shell, "script": script}, *script.splitlines())


class ColonBash(BashComplete):
    """Completes words with colons, such as `import:7`, which Bash splits into three words."""

    #: Part of the completed word that bash keeps.
    _kept = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words, and the incomplete word."""
        words = split_arg_string(os.environ["COMP_WORDS"])[: int(os.environ["COMP_CWORD"]) + 1]
        if len(words) <= int(os.environ["COMP_CWORD"]):
            words.append("")
        joined = words[:1]
        for word in words[1:]:
            if word == ":" or joined[-1].endswith(":"):
                joined[-1] += word
            else:
                joined.append(word)
        before, colon, _ = joined[-1].rpartition(":")
        self._kept = before + colon
        return joined[1:-1], joined[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """Return the completion's text after its last colon, because Bash replaces only that part."""
        return f"{item.type},{item.value.removeprefix(self._kept)}"


add_completion_class(ColonBash, "bash")
