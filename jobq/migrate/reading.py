"""Read Python files as syntax trees, and find the features of Celery, RQ and Dramatiq that they use."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from jobq.errors import ConfigError
from jobq.migrate.rules import rule_for
from jobq.records import JsonRecord, words

#: The system of an import, by the first part of its name.
_SYSTEMS = {
    "celery": "celery", "kombu": "celery", "billiard": "celery", "rq": "rq", "rq_scheduler": "rq", "django_rq": "rq",
    "flask_rq2": "rq", "rq_dashboard": "rq", "rq_exporter": "rq", "dramatiq": "dramatiq",
    "django_dramatiq": "dramatiq", "periodiq": "dramatiq", "dramatiq_crontab": "dramatiq",
}  # fmt: skip
_SKIPPED = frozenset(
    (".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages", ".tox")
)
#: Decorators that make a function a task, by system.
_DECORATORS = {
    "celery": (
        "celery.shared_task",
        "celery.Celery().task",
        "celery.app.shared_task",
        "celery.current_app.task",
    ),
    "rq": ("rq.decorators.job", "rq.job", "django_rq.job"),
    "dramatiq": ("dramatiq.actor",),
}
#: Methods that send a call, each with the number of arguments before the task's own arguments.
_SENDS = {
    "celery": dict.fromkeys(("delay", "apply_async", "s", "si", "signature", "apply", "map", "starmap", "chunks"), 0),
    "rq": {"enqueue": 1, "enqueue_call": 1, "enqueue_in": 2, "enqueue_at": 2, "enqueue_many": 1, "delay": 0},
    "dramatiq": dict.fromkeys(("send", "send_with_options", "message", "get_result"), 0),
}  # fmt: skip
#: Methods that count as Celery's on any object, if the code base uses Celery.
_ANYWHERE = frozenset(("delay", "apply_async"))
_OF_BOUND = frozenset(("retry", "replace", "add_to_chord", "update_state"))
_TYPED = ("datetime.", "uuid.", "decimal.", "pathlib.")
KINDS = ("same", "differs", "none")
PAGES = {
    "celery": "docs/interop/celery.md",
    "rq": "docs/interop/migrating.md#from-rq",
    "dramatiq": "docs/interop/migrating.md#from-dramatiq",
}


class MigrationFinding(JsonRecord, frozen=True):
    """A place in a code base that uses a feature of another queue system.

    Attributes:
        file: Path, relative to the checked folder.
        line: Number of the line.
        kind: `same` if jobq has an equivalent, `differs` if jobq behaves differently, `none` if jobq has no equivalent.
        what: The feature that the code uses.
        text: The replacement in jobq, or the difference.
        page: Page of jobq's documentation about the feature.
    """

    file: str
    line: int
    kind: Annotated[str, words(KINDS)]
    what: str
    text: str
    page: str


class Module(NamedTuple):
    """A Python file and its syntax tree."""

    file: str
    tree: ast.Module


class _Project:
    """Facts about a code base that its files share: job queues, tasks, and names of objects."""

    def __init__(self, modules: list[Module]) -> None:
        self.systems: set[str] = set()
        self.tasks: dict[str, str] = {}
        self.objects: dict[str, str] = {}
        for _ in range(2):  # the second pass knows the apps of decorators
            for module in modules:
                names = _Names(module, self)
                self.systems |= names.systems - {""}
                self.objects |= {
                    name: origin for name, origin in names.assigned.items() if system_of(origin)
                }
                for node in ast.walk(module.tree):
                    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                        for decorator in node.decorator_list:
                            if system := decorated_by(names.origin(decorator)):
                                self.tasks[node.name] = system


class _Names:
    """The meanings of the names in a file, such as `celery.Celery()` for `app` and `rq.Queue()` for `q`."""

    def __init__(self, module: Module, project: _Project) -> None:
        self.known: dict[str, str] = {}
        self.assigned: dict[str, str] = {}
        self.systems: set[str] = set()
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node, project)
        for node in ast.walk(module.tree):
            for target, value in _assigned(node):
                origin = self.origin(value)
                if isinstance(target, ast.Name) and system_of(origin):
                    self.known[target.id] = self.assigned[target.id] = origin

    def _import(self, node: ast.Import | ast.ImportFrom, project: _Project) -> None:
        for alias, name in imported(node):
            self.systems.add(system_of(name))
            top = alias.name.split(".")[0]
            if isinstance(node, ast.ImportFrom) and not system_of(name):
                name = project.objects.get(alias.name, name)
            if isinstance(node, ast.Import) and not alias.asname:
                self.known[top] = top
            else:
                self.known[alias.asname or alias.name] = name

    def origin(self, node: ast.AST | None) -> str:
        """Return the dotted name of the object in an expression, such as `celery.Celery()`, or '' if the object is
        unknown.
        """
        if isinstance(node, ast.Name):
            return self.known.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self.origin(node.value)
            return f"{base}.{node.attr}" if base else ""
        if isinstance(node, ast.Call):
            name = self.origin(node.func)
            return f"{name}()" if name else ""
        return ""


def check(path: Path) -> list[MigrationFinding]:
    """Return all findings in a file or folder, sorted by file and line.

    Raises ConfigError if none of the Python files imports Celery, RQ or Dramatiq.
    """
    modules: list[Module] = []
    findings: dict[tuple[str, int, str], MigrationFinding] = {}
    for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
        name = file.name if path.is_file() else str(file.relative_to(path))
        if not _SKIPPED.isdisjoint(Path(name).parts):
            continue
        try:
            modules.append(Module(name, ast.parse(file.read_bytes(), str(file))))
        except (SyntaxError, ValueError, RecursionError, OSError) as error:
            text = f"unreadable and not checked: {error}"
            findings[name, 0, ""] = MigrationFinding(
                name, getattr(error, "lineno", 0) or 1, "none", "file", text, ""
            )
    project = _Project(modules)
    if not project.systems and not findings:
        raise ConfigError(f"no Python file in {path} imports Celery, RQ or Dramatiq")
    for module in modules:
        for line, system, seen, what in _CodeReader(module, project).facts():
            rule = rule_for(system, seen)
            if rule is not None:
                text = rule.text.format(what)
                finding = MigrationFinding(module.file, line, rule.kind, what, text, PAGES[system])
                findings.setdefault((module.file, line, what), finding)
    return sorted(findings.values(), key=lambda finding: (finding.file, finding.line))


def system_of(name: str) -> str:
    """Return the library that a dotted name belongs to (`celery`, `rq` or `dramatiq`), or '' for other names."""
    top = name.split(".")[0].removesuffix("()")
    return _SYSTEMS.get(top, "celery" if top.startswith("celery_") else "")


def decorated_by(origin: str) -> str:
    """Return the library (`celery`, `rq` or `dramatiq`) whose task decorator this is, or '' for other decorators."""
    name = origin.removesuffix("()")
    return next((system for system, names in _DECORATORS.items() if name in names), "")


def imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[ast.alias, str]]:
    """Yield each imported object with its full name. For a relative import, the name doesn't include the module."""
    absolute = isinstance(node, ast.ImportFrom) and not node.level and node.module
    for alias in node.names:
        yield alias, f"{absolute}.{alias.name}" if absolute else alias.name


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr | None, ast.expr]]:
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.With):
        yield from ((item.optional_vars, item.context_expr) for item in node.items)


Fact = tuple[int, str, str, str]


class _CodeReader:
    """Finds the features of Celery, RQ and Dramatiq that a file uses."""

    def __init__(self, module: Module, project: _Project) -> None:
        self._module, self._project = module, project
        self._names = _Names(module, project)

    def facts(self) -> Iterator[Fact]:
        readers: dict[type[ast.AST], Callable[[Any], Iterator[Fact]]] = {
            ast.Import: self._imports, ast.ImportFrom: self._imports, ast.FunctionDef: self._tasks,
            ast.AsyncFunctionDef: self._tasks, ast.ClassDef: self._bases, ast.Call: self._calls,
            ast.Assign: self._settings, ast.Attribute: self._attributes,
        }  # fmt: skip
        for node in ast.walk(self._module.tree):
            if type(node) in readers:
                yield from readers[type(node)](node)

    def _bases(self, node: ast.ClassDef) -> Iterator[Fact]:
        for base in node.bases:
            origin = self._names.origin(base)
            if system := system_of(origin):
                yield node.lineno, system, f"base {origin}", f"class {node.name}({origin})"

    def _attributes(self, node: ast.Attribute) -> Iterator[Fact]:
        origin = self._names.origin(node.value)
        if system_of(origin) == "rq" and "()" in origin:
            yield node.lineno, "rq", f"attribute rq {node.attr}", f".{node.attr}"

    def _imports(self, node: ast.Import | ast.ImportFrom) -> Iterator[Fact]:
        for _, name in imported(node):
            if (system := system_of(name)) and not getattr(node, "level", 0):
                yield node.lineno, system, f"import {name}", f"import {name}"

    def _tasks(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Fact]:
        for decorator in node.decorator_list:
            system = decorated_by(self._names.origin(decorator))
            if not system:
                continue
            keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
            given = {keyword.arg for keyword in keywords}
            word = f"task {system}"
            if system == "celery" and isinstance(node, ast.AsyncFunctionDef):
                word = f"async {word}"
            elif "acks_late" in given:
                word = f"late {word}"
            elif system == "dramatiq" and "max_retries" in given:
                word = f"retried {word}"
            yield decorator.lineno, system, word, f"task {node.name}"
            yield from self._keywords(system, "task", keywords)

    def _keywords(self, system: str, of: str, keywords: Iterable[ast.keyword]) -> Iterator[Fact]:
        for keyword in keywords:
            if keyword.arg is not None:
                seen = f"keyword {system}.{of} {keyword.arg}"
                if keyword.arg in ("serializer", "is_async"):
                    seen += f" {getattr(keyword.value, 'value', '?')}"
                yield keyword.value.lineno, system, seen, f"{keyword.arg}="

    def _calls(self, node: ast.Call) -> Iterator[Fact]:
        origin = self._names.origin(node.func)
        system, method = system_of(origin), origin.rpartition(".")[2]
        if isinstance(node.func, ast.Attribute):
            sent = self._sender(node.func)
            if sent:
                yield from self._sent(node, sent, node.func.attr)
                return
            if (
                node.func.attr in _OF_BOUND
                and "celery" in self._project.systems
                and origin.startswith("self.")
            ):
                yield node.lineno, "celery", f"call celery.{method}", f"self.{method}()"
                yield from self._keywords("celery", method, node.keywords)
        if not system:
            return
        if method == "crontab" and {"day_of_month", "day_of_week"} <= {
            k.arg for k in node.keywords
        }:
            yield node.lineno, system, "crontab celery both days", "crontab()"
        if origin == "celery.Celery":
            yield from (
                (keyword.value.lineno, system, f"setting celery {keyword.arg}", f"{keyword.arg}=")
                for keyword in node.keywords
            )
        elif origin == "celery.Celery().conf.update":
            yield from self._updated(node)
        else:
            yield node.lineno, system, f"call {origin}", f"{method}()"
            yield from self._keywords(system, method, node.keywords)

    def _sender(self, func: ast.Attribute) -> str:
        receiver = func.value
        name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
        system = self._project.tasks.get(name, "") or system_of(self._names.origin(receiver))
        if not system and "celery" in self._project.systems and func.attr in _ANYWHERE:
            system = "celery"
        return system if func.attr in _SENDS.get(system, {}) else ""

    def _sent(self, node: ast.Call, system: str, method: str) -> Iterator[Fact]:
        of = "enqueue" if system == "rq" and method != "delay" else method
        given = {keyword.arg for keyword in node.keywords}
        retried = "retried " if "retry" in given and system == "rq" else ""
        yield node.lineno, system, f"{retried}call {system}.{method}", f".{method}()"
        if method in ("apply_async", "send_with_options", *_SENDS["rq"]) and method != "delay":
            yield from self._keywords(system, of, node.keywords)
        values = [
            *node.args[_SENDS[system][method] :],
            *(keyword.value for keyword in node.keywords),
        ]
        if method == "apply_async" or (system == "dramatiq" and method == "send_with_options"):
            values = [part for value in values for part in (value, *_parts(value))]
            values = [value for value in values if not _is_start(value, node)]
        for value in values:
            yield from self._argument(value, system)

    def _argument(self, value: ast.expr, system: str) -> Iterator[Fact]:
        if isinstance(value, ast.Lambda | ast.Set | ast.GeneratorExp):
            yield (
                value.lineno,
                system,
                f"object {system} value",
                f"a {type(value).__name__.lower()}",
            )
        elif isinstance(value, ast.Name) and value.id in ("self", "request"):
            yield value.lineno, system, f"object {system} value", value.id
        elif (origin := self._names.origin(value)).startswith(_TYPED):
            yield (
                value.lineno,
                system,
                f"argument {system} value",
                origin.rpartition("datetime.")[2],
            )

    def _settings(self, node: ast.Assign) -> Iterator[Fact]:
        for target in node.targets:
            origin = self._names.origin(target)
            if origin.startswith("celery.Celery().conf."):
                yield self._setting(node.lineno, origin.rpartition(".")[2], node.value)
            elif isinstance(target, ast.Name) and "celery" in self._project.systems:
                config = Path(self._module.file).stem in ("celeryconfig", "celery_config")
                if target.id.startswith("CELERY_") or (config and target.id.islower()):
                    name = target.id.removeprefix("CELERY_").lower()
                    yield self._setting(node.lineno, name, node.value)

    def _updated(self, node: ast.Call) -> Iterator[Fact]:
        for keyword in node.keywords:
            if keyword.arg is not None:
                yield self._setting(keyword.value.lineno, keyword.arg, keyword.value)
        for value in node.args:
            if isinstance(value, ast.Dict):
                for key, entry in zip(value.keys, value.values, strict=True):
                    if isinstance(key, ast.Constant):
                        yield self._setting(entry.lineno, str(key.value), entry)

    def _setting(self, line: int, name: str, value: ast.expr) -> Fact:
        seen = f"setting celery {name}"
        if name.endswith("serializer") or name == "accept_content":
            texts = {part.value for part in ast.walk(value) if isinstance(part, ast.Constant)}
            seen += " json" if texts <= {"json", "application/json"} else " other"
        return line, "celery", seen, name


def _parts(value: ast.expr) -> list[ast.expr]:
    if isinstance(value, ast.Tuple | ast.List):
        return value.elts
    return value.values if isinstance(value, ast.Dict) else []


def _is_start(value: ast.expr, node: ast.Call) -> bool:
    """Return whether the value is a start or expiry time instead of an argument of the task."""
    return any(
        keyword.value is value and keyword.arg in ("eta", "expires", "countdown", "delay")
        for keyword in node.keywords
    )
