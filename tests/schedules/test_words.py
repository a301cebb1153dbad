"""Cron expressions in words."""

from __future__ import annotations

import pytest

from jobq.schedules.definition import checked_schedule
from jobq.schedules.words import in_words

WORDS = {
    "30 7 * * 1-5": "at 07:30, Monday to Friday",
    "@daily": "at 00:00",
    "0 3,15 * * *": "at 03:00 and 15:00",
    "* * * * *": "every minute",
    "*/5 * * * *": "every 5 minutes",
    "@hourly": "every hour, on the hour",
    "5,35 * * * SUN": "every hour, at :05 and :35, Sunday",
    "*/15 9-17 * * 1-5": "every 15 minutes, 09:00 to 17:59, Monday to Friday",
    "20 9-17 * * *": "every hour from 09 to 17, at :20",
    "10 */6 * * 6,7": "at 00:10, 06:10, 12:10 and 18:10, Saturday and Sunday",
    "10 */2 * * *": "every 2 hours, at :10",
    "0 0 L * *": "at 00:00, on the last day of the month",
    "0 0 1 1 *": "at 00:00, on day 1 of the month in January",
    "0 6 1,15 * 1": "at 06:00, on days 1 and 15 of the month or Monday",
    "0 6 */7 * 1": "at 06:00, on days 1, 8, 15, 22 and 29 of the month and Monday",
    "0 12 * * 5#3": "",
    "*/7 * * * *": "",
    "*/5 */2 * * *": "",
    "1 2,3,5,7,11,13,17 * * *": "",
}


@pytest.mark.parametrize("cron", WORDS)
def test_expression_in_words(cron: str) -> None:
    assert in_words(checked_schedule("a", "b", cron, {})) == WORDS[cron]


@pytest.mark.parametrize(
    ("every", "words"),
    [("10m", "every 10 minutes"), ("1d", "every day"), ("90s", "every 90 seconds"), ("1.5s", "every 1.5 seconds")],
)  # fmt: skip
def test_interval_in_words(every: str, words: str) -> None:
    assert in_words(checked_schedule("a", "b", None, {"every": every})) == words
