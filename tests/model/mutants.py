"""The faults of mutants.txt."""

from __future__ import annotations

from pathlib import Path

from tests.model.machine import Mutation


def parsed(block: str) -> Mutation:
    head, *lines = block.split("\n")
    name, scope = head.split(" | ")
    before, after = ("\n".join(line[1:] for line in lines if line[:1] == sign) for sign in "-+")
    return Mutation(name, before, after, scope)


_COMMENT, *_BLOCKS = Path(__file__).with_suffix(".txt").read_text().split("\n\n")
MUTANTS = tuple(parsed(block) for block in _BLOCKS)
