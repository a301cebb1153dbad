"""Text printed to a terminal."""

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


def test_table_goes_on_beyond_one_batch() -> None:
    rows = [[str(n), n] for n in range(output.BATCH * 2 + 1)]
    assert len(list(output.table(["name", "n"], rows))) == len(rows) + 1


def test_table_leaves_out_columns_until_it_fits() -> None:
    rows = [["low", "app.jobs.resize", 3, "x" * 40]]
    headings = ["queue", "job", "attempts", "reason"]
    drops = ["attempts", "job"]
    whole = list(output.table(headings, rows, drops=drops, width=80))
    assert "attempts" in whole[0]
    narrow = list(output.table(headings, rows, drops=drops, width=70))
    assert narrow[0].split() == ["queue", "job", "reason"]
    narrower = list(output.table(headings, rows, drops=drops, width=50))
    assert narrower[0].split() == ["queue", "reason"]
    assert list(output.table(headings, rows, drops=drops)) == whole


def test_table_cuts_the_widest_text_when_no_column_is_left_to_leave_out() -> None:
    lines = list(
        output.table(["queue", "reason"], [["low", "y" * 100], ["low", "東" * 50]], width=40)
    )
    assert all(output.width_of(line) <= 40 for line in lines)
    assert lines[1].endswith("y…") and lines[2].endswith("東…")


def test_table_cuts_as_many_texts_as_it_must() -> None:
    lines = list(output.table(["mid", "job", "n"], [["m" * 60, "j" * 50, 7]], width=60))
    assert all(output.width_of(line) <= 60 for line in lines)
    assert lines[1].endswith("7") and lines[1].count("…") == 2


def test_no_color_wins_over_force_color() -> None:
    assert output.wants_color({"NO_COLOR": "1", "FORCE_COLOR": "1"}) is False
    assert output.wants_color({"FORCE_COLOR": "1"}) is True
    assert output.wants_color({}) is None
