"""What reaches a terminal."""

from __future__ import annotations

import json

from jobq.cli import output
from jobq.observe.escape import escaped


def test_escaped_leaves_no_character_that_commands_a_terminal() -> None:
    nasty = "a\x1b[2Jb\r\nc\x9bd\u202ee\u2028f\ud800g\x00"
    shown = escaped(nasty)
    assert shown.isprintable()
    assert shown == r"a\x1b[2Jb\r\nc\x9bd\u202ee\u2028f\ud800g\x00"


def test_escaped_keeps_letters_of_every_language() -> None:
    assert escaped("naïve 東京 🎉") == "naïve 東京 🎉"


def test_json_line_is_one_ascii_line() -> None:
    text = output.json_line({"mid": "a\x9b\n東"})
    assert text.isascii() and "\n" not in text
    assert json.loads(text) == {"mid": "a\x9b\n東"}


def test_table_aligns_wide_letters_and_numbers() -> None:
    lines = list(output.table(["name", "n"], [["東京", 1], ["ab", 1000]]))
    assert lines == ["name      n", "東京      1", "ab    1,000"]


def test_table_of_nothing_is_its_headings() -> None:
    assert list(output.table(["name", "n"], [])) == ["name  n"]


def test_table_goes_on_beyond_one_stretch() -> None:
    rows = [[str(n), n] for n in range(output.STRETCH * 2 + 1)]
    assert len(list(output.table(["name", "n"], rows))) == len(rows) + 1


def test_no_color_wins_over_force_color() -> None:
    assert output.wants_color({"NO_COLOR": "1", "FORCE_COLOR": "1"}) is False
    assert output.wants_color({"FORCE_COLOR": "1"}) is True
    assert output.wants_color({}) is None
