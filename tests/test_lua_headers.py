"""Each script's header says what the script binds, and how it uses it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobq.client.scripts import Script

LUA = Path(__file__).parents[1] / "lua"
SCRIPTS = sorted(path for path in LUA.rglob("*.lua") if not path.name.startswith("_"))
FRAGMENTS = sorted(LUA.rglob("_*.lua"))
ALL_KEYS = {key for path in SCRIPTS for key in Script(path).keys}
SECTIONS = ("KEYS", "ARGV", "RETURNS", "COST", "WRITES")
TYPES = {
    "hash": r"H[A-Z]+", "list": r"L[A-Z]+|R(?:PUSH|POP)X?", "zset": r"Z[A-Z]+",
    "set": r"S(?:ADD|REM|CARD|ISMEMBER|MISMEMBER|MEMBERS|SCAN|POP|RANDMEMBER)", "stream": r"X[A-Z]+",
    "string": r"M?GET|SET|INCR|DECR|GETDEL|APPEND|STRLEN|PTTL|PEXPIRE|INCRBY|SETBIT|GETBIT|GETRANGE|BITFIELD",
}  # fmt: skip
ANY_TYPE = {"DEL", "EXISTS", "UNLINK", "TYPE", "PEXPIRE", "PERSIST", "PTTL", "RENAME"}
WRITING = re.compile(
    r"redis\.p?call\('(?:HSET|HDEL|HINCRBY|HSETNX|LPUSH|RPUSH|LREM|LTRIM|LPOP|RPOP|LMOVE|ZADD|ZREM|ZPOPMIN|SADD|"
    r"SREM|SPOP|SET|SETBIT|BITFIELD|DEL|UNLINK|XADD|XTRIM|XDEL|INCR|INCRBY|PEXPIRE|PERSIST|RENAME)'"
)


def header(path: Path) -> dict[str, str]:
    """Section -> its text."""
    text = path.read_text(encoding="utf-8")
    found = re.match(r"(?:#!lua[^\n]*\n)?--\[\[\n(.*?)\n\]\]\n", text, re.DOTALL)
    assert found, f"{path.name} doesn't open with a header"
    parts = re.split(rf"^({'|'.join(SECTIONS)})\b", found[1], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def ids(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", SCRIPTS, ids=ids)
def test_header_has_every_section_in_order(path):
    without_arguments = tuple(name for name in SECTIONS if name != "ARGV")
    assert tuple(header(path)) == (
        SECTIONS if Script(path).args or "ARGV" in header(path) else without_arguments
    )
    assert all(text.strip() for text in header(path).values())


@pytest.mark.parametrize("path", SCRIPTS, ids=ids)
def test_header_names_the_keys_that_the_script_binds(path):
    listed = re.findall(r"\b(\w+):(\w+)\b", header(path)["KEYS"].split("  then ")[0])
    assert tuple(name for name, _ in listed) == Script(path).keys
    assert {kind for _, kind in listed} <= {*TYPES, "any"}


@pytest.mark.parametrize("path", SCRIPTS, ids=ids)
def test_header_names_the_arguments_that_the_script_binds(path):
    listed = re.findall(r"^  (\w+)  ", header(path).get("ARGV", ""), re.MULTILINE)
    assert tuple(listed) == Script(path).args


@pytest.mark.parametrize("path", SCRIPTS, ids=ids)
def test_commands_suit_the_types_that_the_header_gives(path):
    types = dict(re.findall(r"\b(\w+):(\w+)\b", header(path)["KEYS"]))
    for command, key in re.findall(r"redis\.call\('(\w+)', (\w+)", Script(path).text):
        if key in types and types[key] != "any" and command not in ANY_TYPE:
            assert re.fullmatch(TYPES[types[key]], command), f"{command} on {key}:{types[key]}"


@pytest.mark.parametrize("path", SCRIPTS, ids=ids)
def test_script_that_writes_nothing_is_flagged_so_and_others_say_what(path):
    flagged = "no-writes" in path.read_text(encoding="utf-8").splitlines()[0]
    assert flagged == (header(path)["WRITES"].strip() == "nothing")
    # Fragments that scripts of both kinds include have writes that a read-only one never calls.
    text = path.read_text(encoding="utf-8") if flagged else Script(path).text
    assert flagged == (WRITING.search(text) is None)


def written(script: Script) -> set[str]:
    """Keys that a script writes by name."""
    commands = WRITING.pattern.removesuffix("'")
    found = set(re.findall(rf"{commands}', (\w+)", script.text))
    if "'SET', call.key" in script.text:
        found.add("last_call")
    return found & set(script.keys)


@pytest.mark.parametrize("path", SCRIPTS, ids=ids)
def test_script_writes_the_keys_that_its_header_names(path):
    """Where WRITES opens with keys; elsewhere it says when nothing is written."""
    script = Script(path)
    named = re.split(r"[,;]", header(path)["WRITES"].strip())[0]
    words = set(named.split(" and "))
    if named == "all keys":
        words = set(script.keys)
    if words <= ALL_KEYS:
        assert written(script) == words


def needs(fragment: Path) -> set[str]:
    """Names that a fragment takes from the script around it."""
    found = re.search(r"^-- needs:(.*)$", fragment.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, fragment.name
    return set(found[1].split())


@pytest.mark.parametrize("path", SCRIPTS, ids=ids)
def test_script_binds_what_its_fragments_need(path):
    script, before = Script(path), ""
    for line in path.read_text(encoding="utf-8").splitlines():
        include = re.fullmatch(r"--@include (?:(\w+)/)?(\w+)", line)
        if include:
            fragment = LUA / (include[1] or path.parent.name) / f"{include[2]}.lua"
            local = {
                name
                for names in re.findall(r"\blocal (?:function )?([\w, ]+)", before)
                for name in re.split(r", *", names.strip())
            }
            assert needs(fragment) <= {*script.keys, *script.args, *local}, fragment.name
            before += fragment.read_text(encoding="utf-8")
        before += line + "\n"


def declared(fragment: Path) -> set[str]:
    """Functions and values that a fragment declares for whoever includes it."""
    text = fragment.read_text(encoding="utf-8")
    found = set(re.findall(r"^local function (\w+)", text, re.MULTILINE))
    for names in re.findall(r"^local (?!function)([\w, ]+)", text, re.MULTILINE):
        found |= set(re.split(r", *", names.strip()))
    return found


DECLARED = set[str]().union(*(declared(path) for path in FRAGMENTS))
FUNCTIONS = {
    name
    for path in SCRIPTS
    for name in re.findall(r"local function (\w+)", path.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("path", FRAGMENTS, ids=ids)
def test_fragment_takes_keys_and_functions_and_what_fragments_declare_and_the_rest_as_arguments(
    path,
):
    arguments = ARGUMENTS if path.stem == "_plain" else set()
    assert needs(path) <= ALL_KEYS | DECLARED | FUNCTIONS | arguments


#: Arguments of scripts. `_plain` is all that its scripts do, and isn't a function, so it uses them by their names.
ARGUMENTS = {name for path in SCRIPTS for name in Script(path).args}


def globals_of(text: str) -> set[str]:
    """Names that a Lua text uses and neither it nor Lua nor the server declares."""
    code = re.sub(r"--\[\[.*?\]\]|--[^\n]*|'(?:[^'\\\n]|\\.)*'", " ", text, flags=re.DOTALL)
    own = {"redis", "KEYS", "ARGV", "cmsgpack", "cjson", "bit", "struct"}
    for names in re.findall(r"\blocal (?!function)([\w, \n]+?)(?=\n|=| in )", code):
        own |= set(re.findall(r"\w+", names))
    for name, arguments in re.findall(r"\bfunction ?(\w*)\(([^)]*)\)", code):
        own |= {name, *re.findall(r"\w+", arguments)}
    for names in re.findall(r"\bfor ([\w, ]+?)(?: in|=| =)", code):
        own |= set(re.findall(r"\w+", names))
    used = set(re.findall(r"(?<![\w.:])([a-z_]\w*)", code)) - set(
        re.findall(r"(?<=[{,\s])(\w+) = ", code)
    )
    return used - own - LUA_WORDS


LUA_WORDS = set(
    re.findall(
        r"\w+",
        "and break do else elseif end false for function if in local nil not or repeat return then true until while "
        "string table math pairs ipairs unpack tonumber tostring type next error pcall select",
    )
)


@pytest.mark.parametrize("path", FRAGMENTS, ids=ids)
def test_fragment_names_all_that_it_takes(path):
    text = path.read_text(encoding="utf-8")
    assert globals_of(text) <= needs(path) | ALL_FROM_ARGUMENTS


#: What `shared/_arguments` and `queue/_stored` declare is there in every script that checks what it was given.
ALL_FROM_ARGUMENTS = declared(LUA / "shared" / "_arguments.lua") | declared(
    LUA / "queue" / "_stored.lua"
)


@pytest.mark.parametrize("path", FRAGMENTS, ids=ids)
def test_fragment_says_what_it_does_and_needs(path):
    opening = path.read_text(encoding="utf-8").splitlines()[:4]
    assert re.match(rf"-- {path.stem[1:]}\b.{{10,}}", opening[0])
    assert any(line.startswith("-- needs:") for line in opening)


@pytest.mark.parametrize("path", FRAGMENTS, ids=ids)
def test_fragment_is_used(path):
    here = f"--@include {path.stem}\n"
    anywhere = f"--@include {path.parent.name}/{path.stem}\n"
    users = [
        one
        for one in LUA.rglob("*.lua")
        if anywhere in one.read_text() or (one.parent == path.parent and here in one.read_text())
    ]
    assert users
