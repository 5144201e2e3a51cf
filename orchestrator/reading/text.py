"""YAML text as plain data that knows its lines.

Rules, stricter than YAML 1.1:
    1. A key that is given twice is a finding; the first one counts.
    2. Only `true` and `false` are booleans, only decimal digits are numbers, and no text turns into
       a date or a number to the base of sixty. Keys are always texts, as written.
    3. Tags other than those of the core types are findings. Anchors and `<<` work.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

Path = tuple[str | int, ...]
"""Keys and list indexes from the top of the document to a value."""

_TAG = "tag:yaml.org,2002:"

_PLAIN = [
    (tag, re.compile(form, re.ASCII))
    for tag, form in (
        ("null", r"null|~|"),
        ("bool", r"true|True|TRUE|false|False|FALSE"),
        ("int", r"[-+]?[0-9]+"),
        ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"),
        ("merge", r"<<"),
    )
]
_UNTOLD = re.compile(r"'[^'<][^']{3,}'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong in a text."""

    line: int
    """From 1; 0 where no line is concerned."""
    path: Path
    text: str


class _Loader(yaml.SafeLoader):
    """PyYAML's composer, with the plain scalars of YAML 1.2's core schema (section 10.3.2)."""

    def resolve(self, kind: type[Node], value: object, implicit: Sequence[bool]) -> str:
        """Returns the tag of a node that has none written."""
        if kind is ScalarNode and implicit[0] and isinstance(value, str):
            return _TAG + next((tag for tag, form in _PLAIN if form.fullmatch(value)), "str")
        if kind is ScalarNode:
            return _TAG + "str"
        return _TAG + ("map" if kind is MappingNode else "seq")


class Document:
    """A YAML text, read once.

    Args:
        text: The whole text.
        source: Its name in messages, usually the file's path.
    """

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.findings: list[Finding] = []
        self.data: object = None
        """Dicts, lists, texts, numbers, booleans and None; None too if the text is broken."""
        self._entries: dict[int, dict[str, tuple[int, Node]]] = {}
        self._values: dict[int, object] = {}
        self._open: set[int] = set()
        try:
            self._root = _compose(text)
            if self._root is not None:
                self.data = self._value(self._root, ())
        except yaml.YAMLError as error:
            self._root = None
            self.findings = [_broken(error)]
        except RecursionError:
            self._root = None
            self.findings = [Finding(line=1, path=(), text="nested too deeply")]

    def line_of(self, path: Sequence[str | int]) -> int:
        """The line where that value's key stands, or the nearest above it that exists."""
        node, line = self._root, 1
        for part in path:
            entries = self._entries.get(id(node), {})
            if part in entries:
                line, node = entries[str(part)]
            elif (
                isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value)
            ):
                node = node.value[part]
                line = _line(node)
            else:
                break
        return line

    def _value(self, node: Node, path: Path) -> object:
        if id(node) in self._open:
            self._find(node, path, "an alias that contains itself")
            return None
        # an alias is the same node again: it is read once, however often it is used
        if id(node) not in self._values:
            self._open.add(id(node))
            self._values[id(node)] = self._read(node, path)
            self._open.discard(id(node))
        return self._values[id(node)]

    def _read(self, node: Node, path: Path) -> object:
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
            return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, MappingNode):
            # also where the tag is refused, since line_of may come by
            self._entries[id(node)] = entries = self._mapping(node, path)
            if node.tag == _TAG + "map":
                return {key: self._value(item, (*path, key)) for key, (_, item) in entries.items()}
        self._find(node, path, "a tag that isn't allowed")
        return None

    def _scalar(self, node: ScalarNode, path: Path) -> object:
        text: str = node.value
        try:
            match node.tag.removeprefix(_TAG):
                case "str" | "merge":
                    return text
                case "null":
                    return None
                case "bool":
                    return {"true": True, "false": False}[text.lower()]
                case "int":
                    return int(text)
                case "float":
                    return float(text)
                case _:
                    self._find(node, path, "a tag that isn't allowed")
        except (KeyError, ValueError):  # `!!int word`, or more digits than Python takes
            self._find(node, path, "not a value of its type")
        return None

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, tuple[int, Node]]:
        own: dict[str, tuple[int, Node]] = {}
        merged: list[Node] = []
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self._find(key, path, "a key that is a list or a section; keys are texts")
            elif key.tag == _TAG + "merge":
                merged.extend(value.value if isinstance(value, SequenceNode) else [value])
            elif key.value in own:
                first = own[key.value][0]
                self._find(key, (*path, key.value), f"given twice, first in line {first}")
            else:
                own[key.value] = (_line(key), value)
        return dict(self._inherited(merged, path)) | own

    def _inherited(
        self, merged: Sequence[Node], path: Path
    ) -> Iterator[tuple[str, tuple[int, Node]]]:
        # the first section of a `<<` list wins, so it comes last
        for node in reversed(merged):
            if not isinstance(node, MappingNode):
                self._find(node, path, "<< takes sections only")
            else:
                self._value(node, path)
                yield from self._entries.get(id(node), {}).items()

    def _find(self, node: Node, path: Path, text: str) -> None:
        self.findings.append(Finding(line=_line(node), path=path, text=text))


def section_of(value: object) -> Mapping[str, object]:
    """The value if it is a section, else an empty one."""
    # the keys of whatever comes from YAML or JSON are texts
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def list_of(value: object) -> list[object]:
    """The value if it is a list, else an empty one."""
    return cast("list[object]", value) if isinstance(value, list) else []


def _compose(text: str) -> Node | None:
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def _line(node: Node) -> int:
    return node.start_mark.line + 1


def _broken(error: yaml.YAMLError) -> Finding:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(filter(None, (error.context, error.problem)))
        # what PyYAML quotes may be a piece of a secret; single characters are the useful ones
        text = _UNTOLD.sub("'...'", problem)
        return Finding(line=mark.line + 1 if mark else 1, path=(), text=f"broken YAML: {text}")
    return Finding(line=1, path=(), text="broken YAML: a character that YAML doesn't allow")
