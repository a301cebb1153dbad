"""The page of `python -m bench.spark`: the command of its run, and the figures that missed their targets."""

from __future__ import annotations

from typing import Any

from bench.spark import document


def head(command: str) -> dict[str, str]:
    return {"command": command, "date": "2026-11-21", "load at start": "0.10"}


def figure(*values: float, others: float = 0.0) -> dict[str, Any]:
    return {"case": "any", "unit": "s", "values": list(values), "others": others}


def test_page_tells_the_command_of_the_run_and_what_was_measured_again():
    heads = [head("python -m bench.spark"), head("python -m bench.spark report")]
    said = list(document({"heads": heads, "figures": {}, "seconds": 600}))
    assert "- command: `python -m bench.spark`" in said
    assert [line for line in said if "again" in line] == [
        "- measured again afterwards: `python -m bench.spark report`, 2026-11-21, load 0.10"
    ]
    assert "- medians, least and greatest in brackets; 10 minutes in all" in said


def test_figure_is_judged_by_its_median_and_marked_when_others_took_the_machine():
    figures = {
        "report all": figure(80, 120, 89, others=0.3), "read events": figure(400_000),
        "read five columns of events": figure(900_000),
    }  # fmt: skip
    said = "\n".join(document({"heads": [head("x")], "figures": figures, "seconds": 0}))
    assert "| report all | ≤ 90 | 89.0 (80.0–120.0) s | reached, † 30% |" in said
    assert "| read events | ≥ 500,000 | 400,000 s | missed |" in said
    assert "| read five columns of events |  | 900,000 s |  |" in said
