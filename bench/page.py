"""What the pages of figures have in common: their head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def head(heads: Sequence[dict[str, str]], remark: str) -> Iterator[str]:
    """What a run was made on and by, then each part of it that was measured again."""
    for key, value in heads[0].items():
        yield f"- {key}: {'`' * (key == 'command')}{value}{'`' * (key == 'command')}"
    yield f"- {remark}"
    for again in heads[1:]:
        yield f"- measured again afterwards: `{again['command']}`, {again['date']}, load {again['load at start']}"
