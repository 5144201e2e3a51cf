"""What is wrong in a YAML file, one line a fault: file, line, key path, found, allowed, meant.

The words come from the errors of pydantic, what else could stand there from the JSON Schema of the
model. A value is told only where no secret can stand, cut short and masked.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from orchestrator.reading.text import Document, Finding, list_of, section_of

_MAX_SHOWN = 40
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_CREDENTIAL = re.compile(
    r"(?:sk|pk|key|ghp|hf|xai|gsk)[-_][\w-]{6,}|[\w+/=-]{32,}|bearer\s+\S+",
    re.ASCII | re.IGNORECASE,
)

_ALLOWED = {
    "bool_type": "true or false",
    "string_type": "a text",
    "string_too_short": "a text that isn't empty",
    "list_type": "a list",
    "tuple_type": "a list",
}
_SECTION_ERRORS = {"dict_type", "mapping_type", "model_type", "model_attributes_type"}

Schema = Mapping[str, object]
"""A JSON Schema, as pydantic makes it."""


def report(source: str, findings: Iterable[Finding]) -> str:
    """Writes the findings in the order of the file, a line each."""
    ordered = sorted(findings, key=lambda finding: finding.line)
    # one fault seen twice (an alias, a check before and after) is told once
    return "\n".join(dict.fromkeys(_line(source, finding) for finding in ordered))


def findings_in(error: ValidationError, document: Document, schema: Schema) -> list[Finding]:
    """Turns pydantic's errors into findings.

    Args:
        error: What validating `document.data` gave.
        document: Where the data came from; it knows the lines.
        schema: The JSON Schema of the model that was validated.
    """
    return [
        _finding(each, document, _Node(schema, schema))
        for each in error.errors(include_url=False)
        # a list whose items are all wrong counts as too short to pydantic, not to the reader
        if not (each["type"] == "too_short" and each["input"])
    ]


def nearest(word: str, words: Iterable[str]) -> str:
    """A hint at the word that was probably meant, or at all the words there are."""
    known = list(words)
    # a key may be any text, and the report has a line for each fault
    listed = _listed([each if each.isprintable() else shown(each) for each in known])
    return _close(word, known) or f"{listed or 'nothing'} is allowed"


def shown(value: object) -> str:
    """A value as the YAML would write it, cut short; lists and sections only by their kind."""
    if isinstance(value, Mapping):
        return "a section"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        masked = _CREDENTIAL.sub("***", value)
        cut = masked if len(masked) <= _MAX_SHOWN else masked[: _MAX_SHOWN - 3] + "..."
        return json.dumps(cut, ensure_ascii=not cut.isprintable())
    written = json.dumps(value, default=str)
    return written if len(written) <= _MAX_SHOWN else written[: _MAX_SHOWN - 3] + "..."


def path_text(path: Sequence[str | int]) -> str:
    """Writes a key path with dots, indexes in brackets and unusual keys in quotes."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            # masked as well: a secret may stand where a key belongs
            masked = _CREDENTIAL.sub("***", part)
            key = masked if _PLAIN_KEY.fullmatch(part) else shown(part)
            text += f".{key}" if text else key
    return text


def _line(source: str, finding: Finding) -> str:
    place = f"{source}:{finding.line}"
    return ": ".join(filter(None, (place, path_text(finding.path), finding.text)))


def _close(word: str, known: Iterable[str]) -> str:
    plain = {_bare(each): each for each in known}
    close = difflib.get_close_matches(_bare(word), plain, n=1)
    return f"did you mean {shown(plain[close[0]])}?" if close else ""


def _bare(word: str) -> str:
    return word.casefold().replace("-", "_")


def _listed(words: Sequence[str], last: str = "or") -> str:
    *others, final = words or [""]
    return f"{', '.join(others)} {last} {final}" if others else final


class _Node:
    """One place in a JSON Schema; what stands there is found by following the keys."""

    def __init__(self, raw: Schema, root: Schema) -> None:
        self._root = root
        self.nullable = False
        """Whether null is allowed besides."""
        self.about = str(raw.get("description", ""))
        for option in map(section_of, list_of(raw.get("anyOf"))):
            if option.get("type") == "null":
                self.nullable = True
            else:
                raw = option
        if "$ref" in raw:
            name = str(raw["$ref"]).rpartition("/")[2]
            raw = section_of(section_of(root["$defs"]).get(name))
        self._raw = raw

    @property
    def keys(self) -> list[str]:
        """The keys of a section; none where the names are the user's own."""
        return list(section_of(self._raw.get("properties")))

    @property
    def kinds(self) -> dict[str, str]:
        """The sections that a key such as `kind` chooses from, by its value; none elsewhere."""
        kinds = section_of(section_of(self._raw.get("discriminator")).get("mapping"))
        return {kind: str(reference) for kind, reference in kinds.items()}

    @property
    def options(self) -> list[str]:
        """The texts that a value is chosen from."""
        return [str(option) for option in list_of(self._raw.get("enum"))]

    @property
    def section(self) -> str:
        """What has to stand in a section, in words."""
        if self.kinds:
            return f"a section with kind: {_listed(list(self.kinds))}"
        return f"a section of {_listed(self.keys, 'and')}" if self.keys else "a section"

    def of_kind(self, kind: str) -> "_Node":
        """The section of that kind."""
        return _Node({"$ref": self.kinds.get(kind, "")}, self._root)

    @property
    def form(self) -> "_Node":
        """The section among the forms that a value may have, else the node itself."""
        for option in map(section_of, list_of(self._raw.get("oneOf"))):
            if "$ref" in option:
                return _Node(option, self._root)
        return self

    def child(self, part: str | int) -> "_Node | None":
        """What stands below that key or index, if the schema knows it."""
        if isinstance(part, int):
            candidates = [self._raw.get("items")]
        else:
            named = section_of(self._raw.get("properties")).get(part)
            patterns = section_of(self._raw.get("patternProperties"))
            candidates = [named, *patterns.values(), self._raw.get("additionalProperties")]
        for candidate in map(section_of, candidates):
            if candidate:
                return _Node(candidate, self._root)
        return None


def _finding(error: ErrorDetails, document: Document, node: _Node) -> Finding:
    path: list[str | int] = []
    for part in error["loc"]:
        if part == "[key]":  # pydantic's way to speak of the key itself
            break
        if node.kinds:  # the kind is a step to pydantic, not in the YAML
            node = node.of_kind(str(part))
            continue
        if str(part).startswith("("):  # so is which of several forms a value has
            node = node.form
            continue
        path.append(part)
        # a key that the schema doesn't know is told with the section that it stands in
        node = node.child(part) or node
    if error["type"].startswith("union_tag"):
        path.append("kind")
    return Finding(line=document.line_of(path), path=tuple(path), text=_text(error, path, node))


def _text(error: ErrorDetails, path: Sequence[str | int], node: _Node) -> str:
    kind = error["type"]
    context = cast("Mapping[str, object]", error.get("ctx", {}))  # pydantic types both as Any
    value: object = error["input"]
    hint = ""
    match kind:
        case "wrong":
            return str(context["text"])
        case "missing":
            return f"missing; {node.about.rstrip('.')}" if node.about else "missing"
        case "extra_forbidden":
            return f"unknown key; {nearest(str(path[-1]), node.keys)}"
        case "union_tag_not_found":
            return f"missing; {_listed(list(node.kinds))} is allowed"
        case "union_tag_invalid":
            value = context["tag"]
            allowed, hint = _listed(list(node.kinds)), _close(str(value), node.kinds)
        case "literal_error":
            allowed, hint = _listed(node.options), _close(str(value), node.options)
        case "not_allowed":
            allowed, hint = str(context["allowed"]), str(context["hint"])
        case "too_short":
            return "empty; at least one is needed"
        case _ if kind in _SECTION_ERRORS:
            allowed = node.section
        case _ if kind in _ALLOWED:
            allowed = _ALLOWED[kind]
        case _:
            return error["msg"]
    null = " or null" if node.nullable else ""
    return f"found {shown(value)}, {allowed}{null} is allowed" + (f"; {hint}" if hint else "")
