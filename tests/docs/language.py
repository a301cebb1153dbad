"""Finds English that sounds translated: `python -m tests.docs.language FOLDER [--list]`.

Reads Markdown (prose only), docstrings, comments and messages of Python and Lua, and the visible text of templates.
Prints the findings per 1,000 words, or with --list each as `path:line pattern: match`. `language_counts.toml` has the
counts that each folder may have.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench import sources

NOUNS = "messages?|workers?|jobs?|queues?|rows?|entr(?:y|ies)|flows?|steps?|calls?|names?|keys?|events?|attempts?|files?|process(?:es)?|children|child|schedules?|producers?|consumers?|clients?|values?|results?|members?|errors?|groups?|users?|arguments?"
HUMAN = "says?|said|tells?|told|obeys?|wants?|learns?|asks?|forgets?|remembers?|notes"

#: name -> (regular expression, kinds it applies to; None: all). Kinds: md, doc, comment, text, ui.
PATTERNS: dict[str, tuple[re.Pattern[str], set[str] | None]] = {
    # 1 a clause with "what" where a noun belongs
    "what-clause": (
        re.compile(
            r"(?:^|(?<=[.;:|] ))What (?!is |are |does |do |if |to |happens)[^?]{4,}?(?=[.:;|]|$)"
            r"|\b(?:return|returns|of|from|for|to|by|with|and|or|than|on|in|keeps?|lists?|prints?|shows?|counts?|reads?|writes?|deletes?|holds?|runs?|takes?|gives?|is|are|as|only|all|once|while|until|,) what\b(?! happens)(?! to )(?=[^?]*$|[^?]*[.;:])",
            re.IGNORECASE,
        ),
        None,
    ),
    # 2 "one", "that of", "those" in place of the noun
    "stand-in": (
        re.compile(
            r"\bthose (?:of|that|whose|which|in|with|from|before|after|behind|without|left|to)\b|(?:,|\bis|\bas|\bthan|\band|\bor|\bto|\bbeside|\bof|\bfrom|\blike) that (?:of|with|in|from|whose|behind|before)\b"
            r"|\b(?:this|that|each|such an?|another|an?|the (?:first|second|last|next|old|older|new|newer|late|later|other|only|one|earlier|previous|running|plain)|its own|of these|older|newer|first|second|no|which|some) ones?\b(?! by one)(?! of)"
            r"|\bthe one (?:that|of|in|with|before|behind|it)\b",
            re.IGNORECASE,
        ),
        None,
    ),
    # 3 a relative clause where an adjective or participle is usual
    "that-tail": (
        re.compile(
            rf"\b(?:{NOUNS}) (?:that|which) (?:waits?|runs?|ran|waited|lives?|ended|ends?|failed|fails?|begins?|comes?|came|exists?|stay(?:s|ed)?|died?|dies|(?:is|are|was|were|has|have|had) (?:been )?(?:not |still |never )?(?:\w+ed|done|dead|due|gone|lost|late|left|kept|sent|read|begun|new|old|full|held|taken|put|cut))\b",
            re.IGNORECASE,
        ),
        None,
    ),
    # 4 a bare superlative for a limit
    "bare-most": (
        re.compile(
            r"(?:^|(?<=[.|>;:] ))(?:Most|Least|Fewest|Longest|Shortest|Largest|Greatest|Smallest) (?!recent|often)(?:(?!are\b|is\b|say|ask|never|of\b|need|have)[a-z'-]+ ?){0,3}?\b(?:of|that|in|for|at|between|running|ready)\b|(?:^|(?<=[.|>;:] ))(?:Most|Least|Longest|Largest) (?:[a-z'-]+ ?){1,2}(?=[.;,\[|]|$)",
            0,
        ),
        None,
    ),
    # 5 question words and "from ... on" for points in time and directions
    "when-where": (
        re.compile(
            r"\b(?:until|since|from|to|by) (?:when|where)\b|\bwhere (?:to|from)\b(?= *[.;,:)]|$)|\bfrom (?:then|now|there|here|when) on\b|\bfrom (?:[\w'()]+ ){1,4}on(?= *[.;,:)]|$)|\bnot before\b(?! \d)|\bwhat for\b",
            re.IGNORECASE,
        ),
        None,
    ),
    # 6 "of" after verbs of saying, "by" for "with", chains of "of"
    "of-chain": (
        re.compile(
            r"\b(?:known|knows?|knew|says?|said|tells?|told|learns?|learned|asks?|asked|warns|hears?|thinks?) of\b|\b(?:is|are|was|made|becomes?) of it\b|\bwhat (?:becomes?|became) of\b"
            r"|\bof (?:[\w'`]+ ){1,4}of (?:[\w'`]+ ){1,4}of\b|\bby (?:`?--\w+|hand, )",
            re.IGNORECASE,
        ),
        None,
    ),
    # 7 worn or ambiguous adverbs
    "worn-adverb": (
        re.compile(
            r"\bat once\b|\banew\b|\bfor ever\b|\ball the same\b|\bby now\b|\bnot at all\b|\bas a whole\b|\bany ?more\b(?! than)|\blikewise\b|\bthereby\b|\bthus\b|\bhence\b|, too\b|\balso (?:those|when|if|after|in|from|of|by|for|while|without)\b|\bas before\b|\bonce more\b|\bone after (?:another|the other)\b|\bnowhere\b|\b(?:any|every)body\b",
            re.IGNORECASE,
        ),
        None,
    ),
    # 8 places for order, time and kinship
    "place-word": (
        re.compile(
            r"\bbehind (?!a (?:proxy|firewall|load|reverse)|the (?:proxy|load)|(?:nginx|haproxy|caddy))(?:it|them|the|that|this|these|those|other|its|another|one)\b|\bbesides?\b|\b(?:lies?|lay|lain|stands?|stood)\b(?! out| for)(?= (?:in|on|at|beside|before|behind|within|there|below|above|between|open|still|by))|\bNo further\b|\bin (?:its|their|the) place\b",
            re.IGNORECASE,
        ),
        None,
    ),
    # 9 verbs that take the place of the technical one
    "odd-verb": (
        re.compile(
            rf"\b(?:Have|have|has|had) (?:the |a |an |its |their |every |all )?(?:ticked )?(?!to |one |had |been |no |not )[\w.]+ (?:run|make|count|go|ask|do|take|call|serve|wait|send|print|start|stop|leave|keep)\b(?! of)"
            rf"|; (?:take|say|give)\b|\b(?:goes?|went|going|gone) on\b|\bholds? (?:it|them|that|\w+ )?up\b|\bneeds? a look\b|\b(?:{NOUNS}|server|it|script|page|doctor|supervisor|command|program|kit) (?:{HUMAN})\b|\bcomes? in\b|\bis called\b(?! by| with| when| once| from| in)|\bmakes? (?:a|an|the) (?:look|note)\b",
            0,
        ),
        None,
    ),
    # 10 a negated noun where English negates the verb
    "no-object": (
        re.compile(
            r"\b(?:knows?|takes?|took|reads?|writes?|wrote|stores?|keeps?|holds?|makes?|gets?|gives?|costs?|starts?|asks?|finds?|adds?|sends?|sees?|uses?|serves?|counts?|changes?|moves?|runs?|shows?|lists?|hands out|names?|does|says?|needs?|begins?|imports?|ends?|answers?|prints?) (?:no|none|nothing|neither|nobody|never)\b(?! longer| more)"
            r"|(?:^|(?<=[.|>] ))(?:Nothing|Nobody|None) (?!of the above)\w+s\b|(?:^|(?<=[.|>] ))No (?:further )?\w+ (?:\w+ )?(?:\w+s|is|are|was|has|died|can|may)\b",
            re.IGNORECASE,
        ),
        None,
    ),
    # 11 parameters or several statements run into one sentence
    "run-in": (
        re.compile(r"[^.:;|]{12,}[;:] [^.:;|]{12,}[;:] [^.:;|]{12,}[.;:|]", 0),
        {"md", "doc", "comment", "ui"},
    ),
    # 12 a docstring that can't be read without its neighbours (see `fragment`)
    "fragment": (
        re.compile(
            r"^(?:The same|All of|Both|Its|Their|As |Those|Not |Also|Only|See |Return (?:the same|both|them|it|that|those|all of them)|Until|Since|Of |By |So |Likewise|Same|Nothing|None\b|It )",
            0,
        ),
        {"first"},
    ),
}


class Piece(NamedTuple):
    """Text to check. kind: md, doc, comment, text or ui; `first` for the first sentence of a docstring."""

    path: Path
    line: int
    kind: str
    text: str


def markdown(path: Path) -> Iterator[Piece]:
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        elif not fenced and line.strip() and not line.startswith("#"):
            bare = re.sub(r"\]\([^)]*\)", "]", line)
            bare = re.sub(r"`[^`]*`", "`x`", bare)
            yield Piece(path, number, "md", re.sub(r"[*_\[\]#]", "", bare).strip())


def python(path: Path) -> Iterator[Piece]:
    documented = {
        node.body[0].lineno: node for node in sources.nodes(path, *_DOCUMENTED) if _docstring(node)
    }
    for at, node in documented.items():
        yield from _docstring_pieces(path, at, node)
    for node in sources.nodes(path, ast.Constant, ast.JoinedStr):
        text = _message(node)
        if text and node.lineno not in documented:
            yield Piece(path, node.lineno, "text", text)
    for line, literal in sources.literals(path.read_text(encoding="utf-8")):
        text = literal.lstrip("#: ")
        if literal[0] == "#" and text.count(" ") >= 2 and not _DIRECTIVE.match(text):
            yield Piece(path, line, "comment", text)


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_DIRECTIVE = re.compile(r"type|noqa|fmt|pragma|nosec")


def _docstring(node: ast.AST) -> str | None:
    return ast.get_docstring(node) if isinstance(node, _DOCUMENTED) else None


def _docstring_pieces(path: Path, at: int, node: ast.AST) -> Iterator[Piece]:
    text = _docstring(node) or ""
    yield Piece(path, at, "first", re.split(r"(?<=[.:])\s|\n\n", text)[0])
    inline = [
        name for name in _described(node) if re.search(rf"(?<![\w`]){name}(?:, \w+)*: ", text)
    ]
    if inline and "Args:" not in text and "Attributes:" not in text:
        yield Piece(path, at, "inline", ", ".join(inline))
    for offset, paragraph in _paragraphs(text):
        yield Piece(path, at + offset, "doc", re.sub(r"`[^`]*`", "`x`", paragraph))


def _message(node: ast.AST) -> str:
    """Return the text of a literal with a sentence, such as an error, help or a page's text; '' for others."""
    if isinstance(node, ast.JoinedStr):
        text = "".join(
            part.value if isinstance(part, ast.Constant) else "X" for part in node.values
        )
    else:
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    is_sentence = (
        text.count(" ") >= 3
        and re.search(r"[a-z]{3} [a-z]+ [a-z]", text)
        and "\n" not in text.strip()
    )
    return text if is_sentence else ""


def _described(node: ast.AST) -> list[str]:
    """Return the names of the parameters of a function, or of the fields and the parameters of a class."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [
            given.arg for given in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        ]
    if isinstance(node, ast.ClassDef):
        fields = [
            line.target.id
            for line in node.body
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        ]
        makers = [
            line
            for line in node.body
            if isinstance(line, ast.FunctionDef) and line.name == "__init__"
        ]
        return fields + [name for maker in makers for name in _described(maker)]
    return []


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    at, held = 0, []
    for number, line in enumerate([*text.splitlines(), ""]):
        if line.strip():
            at = number if not held else at
            held.append(line.strip())
        elif held:
            yield at, " ".join(held)
            held = []


def lua(path: Path) -> Iterator[Piece]:
    inside = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        inside = inside or line.startswith("--[[")
        found = [line] if inside else re.findall(r"(?:^|\s)--\s?([^@].*)", line)
        inside = inside and "]]" not in line
        for text in found:
            if text.count(" ") >= 2:
                yield Piece(path, number, "comment", text.strip("- "))


def template(path: Path) -> Iterator[Piece]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for text in re.split(
            r"<[^>]*>", re.sub(r"\{#.*?#\}", "", re.sub(r"\{%.*?%\}|\{\{.*?\}\}", "X", line))
        ):
            if text.count(" ") >= 2 and re.search(r"[a-z]{2} [a-z]", text):
                yield Piece(path, number, "ui", text.strip())


READERS = {".md": markdown, ".py": python, ".lua": lua, ".html": template}
SKIP = {".git", ".venv", "vendor", "_build", "node_modules", "__pycache__"}


def pieces(root: Path) -> Iterator[Piece]:
    for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
        if path.suffix in READERS and path.is_file() and not SKIP & set(path.parts):
            yield from READERS[path.suffix](path)


def faults(piece: Piece) -> Iterator[tuple[str, str]]:
    if piece.kind == "inline":
        yield "run-in", piece.text
        return
    for name, (pattern, kinds) in PATTERNS.items():
        if (piece.kind == "first") != (kinds == {"first"}) or (kinds and piece.kind not in kinds):
            continue
        for match in pattern.finditer(piece.text):
            yield name, match[0].strip()
    if (
        piece.kind == "first"
        and not PATTERNS["fragment"][0].match(piece.text)
        and len(piece.text.split()) < 3
        and piece.text[-1] != ":"
    ):
        yield "fragment", piece.text


def counts(roots: dict[str, list[Path]]) -> dict[str, tuple[int, int, int]]:
    """Return per name: findings without run-in, run-in, and words."""
    totals = {}
    for name, paths in roots.items():
        found: Counter[str] = Counter()
        words = 0
        for piece in (piece for path in paths for piece in pieces(path)):
            words += len(piece.text.split()) if piece.kind not in ("first", "inline") else 0
            found.update(pattern for pattern, _ in faults(piece))
        totals[name] = (found.total() - found["run-in"], found["run-in"], words)
    return totals


def main(root: Path, listed: bool) -> int:
    if listed:
        for piece in pieces(root):
            for pattern, text in faults(piece):
                print(f"{piece.path}:{piece.line} {pattern}: {text[:110]}")
        return 0
    plain, run_in, words = counts({"": [root]})[""]
    print(
        f"{plain:,} findings and {run_in:,} run-in in {words:,} words: {1000 * plain / max(words, 1):.1f} per 1,000"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "--list" in sys.argv))
