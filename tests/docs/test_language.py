"""Pages, docstrings, comments and messages are plain technical English: no metaphors, none of the patterns below.

Code is left out: fenced blocks and code spans of pages, and names in Python and Lua.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.sources import literals
from tests.docs import language

ROOT = Path(__file__).resolve().parents[2]
#: Folder -> findings of language.py that it may have: all patterns but run-in, and run-in.
COUNTS = tomllib.loads((Path(__file__).parent / "language_counts.toml").read_text(encoding="utf-8"))
SLOW = ("bench", "tests")
PAGES = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    )
    if "_build" not in path.parts and path.name != "CHANGELOG.md"
)
SOURCES = ("jobq", "lua", "pyspark_jobq", "pyspark_jobq_lake")

#: What reads as translated, and what to write instead.
PATTERNS = {
    r"\b(?:is|are|was|were|be|been|being|and|or) told\b|\btold (?:so|with|apart|only)\b|\btells? (?:of|so)\b": "report",
    r"(?:^|[.;:?] )(?:Who|Whoever) (?!is\b|are\b|was\b|does\b|else\b)[a-z]": "Anyone who …, or name the actor",
    r"(?<!there )(?<!There )\bis (?:no (?!longer\b|more\b|such\b|\w+ (?:yet|left)\b)\w|(?-i:none)\b)": "must be …",
    r"\bsays? (?:not\b|nothing of\b|naught\b)": "does not say; does not mention",
    r"(?<!times )(?<!twice )\bas (?:far|long) as\b": "if; while; up to",
    r"\b(?:ended?|enqueues?|spells?|begins?|written) otherwise\b": "differently; with different …",
    r"\bfor good\b": "never removed; permanently",
    r"\b(?:call|message|queue|worker|child|server)'s own\b|\bof one's own\b": "name the thing",
    r"\b(?:so|as) many as (?:they|it)\b|\bso often\b|\bfor so long\b": "that often; for this long",
    r"\bby turns\b|\bin one run beside\b|\bagain none\b": "alternating; side by side",
    r"\bmend(?:s|ed|ing)?\b|\bheal(?:s|ed|ing)\b|\btends? (?:it|them|the)\b|\bbears\b": "fix, maintain, tolerate",
    r"\bmeanwhile\b|\bbesides\b|\bthereby\b|\bat that[,.;]": "delete the filler",
    r"\bstretch(?:es)?\b|\bportions?\b": "range, part, batch",
    r"\bnobody (?:knows|looks|else's)\b|\bsomebody\b|\bwhoever\b": "name the actor",
    r"\b(?:judge[sd]?|rehears\w+)\b": "check, test",
}
METAPHORS = re.compile(
    r"\b(?:born|births?|bury|buries|buried|burial|graves?|graveyard|mourn\w*|nemesis|blam\w+|luck\w*|moods?|last rites"
    r"|strokes?|roads?|onion|heirs?|sleepwalk\w*|souls?|whisper\w*|funeral|cradle|obituary|widow\w*|testament"
    r"|befall\w*|smuggl\w*|masquerad\w*|ghosts?|gossip\w*|oath\w*|verdicts? of)\b",
    re.IGNORECASE,
)


def found_in(text: str) -> list[str]:
    """What in a text breaks a rule, with the rule's remedy."""
    found = [f"{one[0]!r}: a metaphor" for one in METAPHORS.finditer(text)]
    for pattern, remedy in PATTERNS.items():
        flags = re.MULTILINE if pattern.startswith("(?:^") else re.MULTILINE | re.IGNORECASE
        found += [f"{one[0]!r}: {remedy}" for one in re.finditer(pattern, text, flags)]
    return found


def page_text(path: Path) -> str:
    text = re.sub(
        r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return re.sub(r"`[^`\n]*`", "`", text)


def python_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Comments and strings, docstrings among them; in these, code spans are left out."""
    for line, literal in literals(path.read_text(encoding="utf-8")):
        # Without a space, a string is a name.
        if literal[0] == "#" or " " in literal:
            yield line, re.sub(r"`[^`]*`", "`", literal)


def lua_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Comments, without the script's name and what a fragment needs; texts of more than one word."""
    source = path.read_text(encoding="utf-8")
    for one in re.finditer(r"--\[\[.*?\]\]|--[^\n]*|'[^'\n]* [^'\n]*'", source, re.DOTALL):
        text = re.sub(r"`[^`]*`", "`", one[0])
        yield (
            source.count("\n", 0, one.start()) + 1,
            re.sub(r"^-- needs:.*|^(?:-- )?\w+(?=: )", "", text, flags=re.MULTILINE),
        )


def sources(name: str) -> list[Path]:
    path = ROOT / name
    return [path] if path.is_file() else sorted([*path.rglob("*.py"), *path.rglob("*.lua")])


def source_findings(name: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in sources(name)
        for line, text in (python_texts if path.suffix == ".py" else lua_texts)(path)
        for what in found_in(text)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_is_plain_english(page: Path) -> None:
    assert found_in(page_text(page)) == []


@pytest.mark.parametrize("name", SOURCES)
def test_sources_are_plain_english(name: str) -> None:
    assert sources(name)
    assert source_findings(name) == []


@pytest.mark.parametrize(
    "text",
    [
        "The worker is told so.", "Who knows one token can guess.", "`lease` of 0 is no lease.",
        "It says nothing of the queue.", "as long as it lives", "A copy that enqueues otherwise", "It stays for good.",
        "written again none", "by turns", "It mends the queue", "Meanwhile it waits", "a stretch of indexes",
        "the child is born", "_mourn", "nobody is blamed",
    ],
)  # fmt: skip
def test_patterns_find_what_they_name(text: str) -> None:
    assert found_in(text.replace("_", ""))


def test_plain_sentences_pass() -> None:
    plain = (
        "The worker is notified. Anyone who knows one token can guess the next. There is no queue. Who is it? "
        "It is no longer there. The message is retried. Otherwise it is dead."
    )
    assert found_in(plain) == []


def checked_paths(folder: str) -> list[Path]:
    return sorted((ROOT / "jobq").glob("*.py")) if folder == "jobq" else [ROOT / folder]


@pytest.mark.parametrize(
    "folder",
    [pytest.param(name, marks=pytest.mark.long if name in SLOW else ()) for name in COUNTS],
)
def test_texts_of_a_folder_have_no_more_findings_than_before(folder: str) -> None:
    plain, run_in, words = language.counts({folder: checked_paths(folder)})[folder]
    assert words, f"{folder} has no texts"
    advice = f"python -m tests.docs.language {folder} --list"
    assert (plain <= COUNTS[folder][0], run_in <= COUNTS[folder][1]) == (True, True), (
        plain,
        run_in,
        advice,
    )


def test_each_package_has_recorded_counts() -> None:
    packages = {f"jobq/{path.parent.name}" for path in (ROOT / "jobq").glob("*/*.py")}
    assert packages - set(COUNTS) == set()


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("what-clause", "Return what was recorded."), ("stand-in", "It runs the newer one."),
        ("that-tail", "The queue holds messages that wait."), ("when-where", "It is paused until when it says."),
        ("worn-adverb", "The worker starts anew."), ("place-word", "Nothing is lost behind it."),
        ("no-object", "The queue stores no times."),
    ],
)  # fmt: skip
def test_checker_finds_a_pattern_in_a_comment(tmp_path: Path, pattern: str, text: str) -> None:
    source = tmp_path / "source.py"
    source.write_text(f"# {text}\n", encoding="utf-8")
    assert pattern in {
        name for piece in language.pieces(source) for name, _ in language.faults(piece)
    }


def test_checker_accepts_plain_texts(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        '"""Return the waiting messages, in order."""\n# Workers retry failed jobs.\n',
        encoding="utf-8",
    )
    assert [name for piece in language.pieces(source) for name, _ in language.faults(piece)] == []
