"""Calls of tools in a model's text, told apart from it while it is made.

Each family of chat templates has its own way to write them:

    hermes    <tool_call>{"name": ..., "arguments": {...}}</tool_call>, as often as wanted (Hermes 2
              Pro, Qwen 2.5 and 3)
    mistral   [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...] up to the end
    llama     {"name": ..., "parameters": {...}} and nothing else (Llama 3.1 and later), more of
              them after `;`; <|python_tag|> may stand before them

What begins such a call is held back until it is whole. What turns out to be none is text.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Literal, cast

import msgspec

Family = Literal["hermes", "mistral", "llama"]
MARKS: Mapping[Family, tuple[str, str]] = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "mistral": ("[TOOL_CALLS]", ""),
    "llama": ("<|python_tag|>", ""),
}
"""What stands before and after calls; nothing after them means that they go to the end."""


class Call(msgspec.Struct, frozen=True, array_like=True):
    """One call."""

    name: str
    arguments: str
    """A JSON object."""


def family_of(template: str) -> Family | None:
    """In which family's way a chat template has calls written; None if it is none of those."""
    if "tools" not in template:
        return None
    if "<tool_call>" in template:
        return "hermes"
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if '"parameters"' in template and "ipython" in template:
        return "llama"
    return None


class CallReader:
    """Reads the calls of one answer.

    Args:
        family: How they are written.
    """

    __slots__ = ("_begin", "_end", "_family", "_held", "_within", "called")

    def __init__(self, family: Family) -> None:
        self._family = family
        self._begin, self._end = MARKS[family]
        self._held = ""
        self._within = False
        """Whether what is held is a call that has begun."""
        self.called = False
        """Whether there was a call."""

    def add(self, text: str) -> tuple[str, list[Call]]:
        """Returns the text that is surely none of a call, and the calls that are whole now."""
        self._held += text
        told, calls = "", list[Call]()
        while True:
            if self._within:
                if not self._end or (end := self._held.find(self._end)) < 0:
                    return told, calls
                found = _read(self._held[len(self._begin) : end])
                end += len(self._end)
                told += "" if found else self._held[:end]
                calls += found
                self.called = self.called or bool(found)
                self._held, self._within = self._held[end:], False
            begin = self._held.find(self._begin)
            if begin >= 0:
                told, self._held, self._within = told + self._held[:begin], self._held[begin:], True
                continue
            if self._family == "llama" and not told and not self.called and self._is_object():
                return told, calls
            keep = _overlap(self._held, self._begin)
            told += self._held[: len(self._held) - keep]
            self._held = self._held[len(self._held) - keep :]
            return told, calls

    def finish(self) -> tuple[str, list[Call]]:
        """Returns what was held back, now that nothing more comes."""
        held, self._held = self._held, ""
        found = _read(held.removeprefix(self._begin)) if self._begin_or_object(held) else []
        self.called = self.called or bool(found)
        return ("" if found else held), found

    def _is_object(self) -> bool:
        """Whether all of the answer so far may be a call that nothing stands before."""
        return self._held.lstrip()[:1] in ("", "{")

    def _begin_or_object(self, held: str) -> bool:
        return held.startswith(self._begin) or (
            self._family == "llama" and held.lstrip().startswith("{")
        )


def _read(text: str) -> list[Call]:
    """The calls in a text that consists of nothing else; none if it doesn't."""
    try:
        values = list(_values(text))
    except ValueError:
        return []
    calls = [_call(value) for value in values]
    return [call for call in calls if call is not None] if all(calls) else []


def _values(text: str) -> Iterator[object]:
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at].isspace() or text[at] == ";":
            at += 1
            continue
        value, at = decoder.raw_decode(text, at)
        yield from cast("list[object]", value) if isinstance(value, list) else [value]


def _call(value: object) -> Call | None:
    if not isinstance(value, dict):
        return None
    members = cast("dict[str, object]", value)
    name = members.get("name")
    arguments = members.get("arguments", members.get("parameters", {}))
    if isinstance(arguments, str):  # some write the object as a text in the text
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return Call(name, json.dumps(arguments, ensure_ascii=False))


def _overlap(text: str, mark: str) -> int:
    """Length of the longest ending of `text` that begins `mark` without being all of it."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0
