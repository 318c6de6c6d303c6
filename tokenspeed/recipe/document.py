"""YAML, tamed: from bytes to a tree of values that know their line and column.

PyYAML composes the node tree; the scalars are resolved here by the core schema of YAML 1.2, so
`on` is a word, `22:22` is text and `1e3` is a number. What two readers could take for different
things is refused with the way out. Syntax stops at the first fault; everything after it is
collected.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from tokenspeed.errors import NoInputError, Problem, RecipeError, Where

UNREADABLE, NOT_TEXT, SYNTAX, MANY_DOCUMENTS = "TS-R001", "TS-R002", "TS-R003", "TS-R004"
NOT_A_MAPPING, DUPLICATE, EMPTY, TOO_LARGE = "TS-R005", "TS-R006", "TS-R007", "TS-R008"
TAGGED, AMBIGUOUS, BAD_KEY = "TS-R009", "TS-R017", "TS-R018"

MAX_BYTES = 256 * 1024
MAX_VALUES = 10_000
MAX_DEPTH = 32

_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_INT = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
# Private tags: whatever does not begin so was tagged by the author.
_PLAIN, _QUOTED, _COLLECTION = "core:plain", "core:quoted", "core:collection"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value, with its place. `value` is None, bool, int, float or str.

    `empty` tells a key with nothing after its colon from one that says null.
    """

    value: Any
    where: Where
    empty: bool = False


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Tree, ...]
    where: Where


@dataclass(frozen=True, slots=True)
class Entry:
    """`where` is the place of the key."""

    key: str
    where: Where
    value: Tree


@dataclass(frozen=True, slots=True)
class Mapping:
    entries: tuple[Entry, ...]
    where: Where


Tree: TypeAlias = Scalar | Sequence | Mapping


class _Loader(yaml.SafeLoader):
    """Composes nodes only; tags say what the author wrote, not what YAML 1.1 makes of it."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        if kind is not yaml.ScalarNode:
            return _COLLECTION
        return _PLAIN if implicit[0] else _QUOTED


def read_document(path: Path) -> tuple[Mapping, list[Problem]]:
    """The root mapping of the file, and every fault that did not keep it from being read.

    Raises NoInputError when there is no such file, RecipeError when it is no YAML mapping or its
    path is not UTF-8.
    """
    file = str(path)
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError as error:
        # Plans, locks and running instances say where they come from, in JSON.
        hint = "rename the file, or the folder that it is in"
        raise _fault(NOT_TEXT, "the path is not UTF-8", Where(file), hint) from error
    try:
        # A pipe has no size and a device no end: what is read is bounded, not what is there.
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise NoInputError(
            Problem(
                code=UNREADABLE,
                message=f"the recipe cannot be read: {error.strerror or error}",
                where=Where(file),
                hint="check the path; shipped recipes are in recipes/",
            )
        ) from error
    if len(raw) > MAX_BYTES:
        message = f"the file is larger than {MAX_BYTES // 1024} KiB"
        hint = "a recipe has a few dozen lines; is this the right file?"
        raise _fault(TOO_LARGE, message, Where(file), hint)
    return parse(decode(raw, file), file)


def decode(raw: bytes, file: str) -> str:
    """UTF-8, with or without a byte-order mark. Raises RecipeError."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        hint = "save the file as UTF-8"
        raise _fault(NOT_TEXT, message, Where(file, line, column), hint) from error


def parse(text: str, file: str) -> tuple[Mapping, list[Problem]]:
    """The root mapping of `text`, and every fault found on the way. Raises RecipeError."""
    node = _compose(text, file)
    if node is None:
        hint = "begin with: version: 1"
        raise _fault(NOT_A_MAPPING, "the recipe is empty", Where(file, 1, 1), hint)
    builder = _Builder(file)
    if not isinstance(node, yaml.MappingNode):
        message = f"the recipe is {_noun(node)}, not a mapping of keys to values"
        raise _fault(NOT_A_MAPPING, message, builder.place(node), "begin with: version: 1")
    root = builder.tree(node, "", depth=0)
    assert isinstance(root, Mapping)
    return root, builder.problems


def parse_value(text: str, file: str) -> tuple[Tree, list[Problem]]:
    """One value as `--set key=VALUE` gives it. Raises RecipeError."""
    node = _compose(text, file)
    if node is None:
        return Scalar(None, Where(file)), []
    builder = _Builder(file, whole=True)
    return builder.tree(node, "", depth=0), builder.problems


def _compose(text: str, file: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, _Loader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"character U+{ord(text[error.position]):04X} is not allowed in YAML"
        where = Where(file, line, error.position - text.rfind("\n", 0, error.position))
        raise _fault(SYNTAX, message, where, "remove it") from error
    except yaml.MarkedYAMLError as error:
        raise _syntax(error, text, file) from error
    except RecursionError as error:
        message = f"the nesting is deeper than {MAX_DEPTH} levels"
        raise _fault(TOO_LARGE, message, Where(file), "write it flatter") from error


def _syntax(error: yaml.MarkedYAMLError, text: str, file: str) -> RecipeError:
    mark = error.problem_mark or error.context_mark
    where = Where(file, mark.line + 1, mark.column + 1) if mark else Where(file)
    if "expected a single document" in (error.context or ""):
        message = "a second document begins here; a recipe is one document"
        return _fault(MANY_DOCUMENTS, message, where, "remove the line --- and what follows it")
    lines = text.splitlines()
    before = lines[mark.line][: mark.column + 1] if mark and mark.line < len(lines) else ""
    if "\t" in before:
        message = "a tab where YAML wants spaces"
        return _fault(SYNTAX, message, where, "indent with two spaces")
    if mark and (above := _shallower_above(lines, mark.line)):
        message = f"this line is indented deeper than line {above}, which has a value already"
        hint = f"indent both alike, or move what stands after the colon of line {above}"
        return _fault(SYNTAX, message, where, hint)
    message = ": ".join(part for part in (error.context, error.problem) if part)
    return _fault(SYNTAX, f"not YAML: {message}", where, "check indentation, quotes and brackets")


def _shallower_above(lines: list[str], index: int) -> int:
    """The number of the line above that ends in a value and lies further left; 0 where none does.

    PyYAML takes the two for one text over two lines, and stumbles over the second colon.
    """
    above = next((i for i in range(index - 1, -1, -1) if lines[i].strip()), None)
    if above is None or index >= len(lines):
        return 0
    depths = [len(lines[i]) - len(lines[i].lstrip()) for i in (above, index)]
    both = all(re.match(r" *[\w-]+: +[^\s#|>&*\[{\"']", lines[i]) for i in (above, index))
    return above + 1 if both and depths[0] < depths[1] else 0


class _Builder:
    """Turns nodes into a Tree, collecting faults; a faulty entry is left out of the tree."""

    def __init__(self, file: str, whole: bool = False) -> None:
        self.problems: list[Problem] = []
        self._file = file
        self._whole = whole
        self._values = 0

    def place(self, node: yaml.Node) -> Where:
        if self._whole:
            return Where(self._file)
        return Where(self._file, node.start_mark.line + 1, node.start_mark.column + 1)

    def tree(self, node: yaml.Node, path: str, depth: int) -> Tree:
        self._values += 1
        # Anchors let a few lines stand for millions of values, or for themselves.
        if self._values > MAX_VALUES or depth > MAX_DEPTH:
            what = f"{MAX_VALUES} values" if depth <= MAX_DEPTH else f"{MAX_DEPTH} levels"
            message = f"more than {what}, with aliases followed"
            raise _fault(TOO_LARGE, message, self.place(node), "write the values out")
        if not str(node.tag).startswith("core:"):
            hint = "remove the tag; quote the value if it is meant as text"
            self._note(TAGGED, f"the tag {_tag(node.tag)} is not allowed", path, node, hint)
        if isinstance(node, yaml.MappingNode):
            return Mapping(tuple(self._entries(node, path, depth)), self.place(node))
        if isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value)
            trees = tuple(self.tree(item, f"{path}[{i}]", depth + 1) for i, item in items)
            return Sequence(trees, self.place(node))
        assert isinstance(node, yaml.ScalarNode)
        empty = node.tag == _PLAIN and node.value == ""
        return Scalar(self._scalar(node, path), self.place(node), empty)

    def _entries(self, node: yaml.MappingNode, path: str, depth: int) -> Iterator[Entry]:
        first: dict[str, yaml.Node] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._note(BAD_KEY, f"{_noun(key_node)} as a key", path, key_node, "write a word")
                continue
            key = str(key_node.value)
            full = f"{path}.{key}" if path else key
            if key in first:
                line = first[key].start_mark.line + 1
                hint = f"keep one of them; the first is on line {line}"
                self._note(DUPLICATE, "the key is there twice", full, key_node, hint)
                continue
            first[key] = key_node
            yield Entry(key, self.place(key_node), self.tree(value_node, full, depth + 1))

    def _scalar(self, node: yaml.ScalarNode, path: str) -> Any:
        text = str(node.value)
        if node.tag != _PLAIN:
            return text
        if text in _NULL:
            return None
        if text in _BOOL:
            return _BOOL[text]
        if _LEADING_ZERO.fullmatch(text):
            return self._leading_zero(text, node, path)
        if _INT.fullmatch(text):
            return int(text) if len(text) < 40 else text
        if _OTHER_BASE.fullmatch(text):
            return int(text, 0)
        if _FLOAT.fullmatch(text):
            return float(text)
        if _NOT_FINITE.fullmatch(text):
            self._note(AMBIGUOUS, f"{text} is not a finite number", path, node, "write a number")
        return text

    def _leading_zero(self, text: str, node: yaml.Node, path: str) -> int:
        digits = text.replace("_", "")
        decimal = int(digits)
        octal = digits.lstrip("+-0")
        meant = f"write {decimal}"
        if octal and set(octal) <= set("01234567"):
            meant += f", or 0o{octal} if octal was meant"
        message = f"{text} begins with 0: some readers take it for {decimal}, others for octal"
        self._note(AMBIGUOUS, message, path, node, f"{meant}; quote it if it is text")
        return decimal

    def _note(self, code: str, message: str, path: str, node: yaml.Node, hint: str) -> None:
        problem = Problem(code=code, message=message, path=path, where=self.place(node), hint=hint)
        self.problems.append(problem)


def strange_letters(word: str) -> str:
    """Names the letters of `word` outside ASCII: look-alikes cannot be seen otherwise."""
    strange = sorted({letter for letter in word if not letter.isascii()})
    named = (f"U+{ord(letter):04X} {unicodedata.name(letter, 'unnamed')}" for letter in strange)
    return ", ".join(named)


def _noun(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a single value"


def _tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")


def _fault(code: str, message: str, where: Where, hint: str) -> RecipeError:
    return RecipeError(Problem(code=code, message=message, where=where, hint=hint))
