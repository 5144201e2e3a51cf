from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.gateway.answer import merge_fields
from orchestrator.runners.remote.tool_calls import ToolCallNumbers

ARGUMENTS = [["", '{"a"', ": 1}"], ["{", "}"], ['{"b": [2, 3]}']]


def piece(index: object = ..., **members: Any) -> dict[str, object]:
    arguments = members.pop("arguments", "")
    name = members.pop("name", None)
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    given = members if index is ... else {"index": index, **members}
    return {**given, "function": function}


def merged(*deltas: Sequence[dict[str, object]]) -> list[tuple[object, object, str]]:
    """What the gateway makes of the deltas: id, name and arguments of every call."""
    numbers = ToolCallNumbers()
    fields = merge_fields([{"tool_calls": numbers.number(list(delta))} for delta in deltas])
    calls: Any = fields["tool_calls"]
    return [
        (call.get("id"), call["function"].get("name"), call["function"]["arguments"])
        for call in calls
    ]


EXPECTED = [("c0", "f", '{"a": 1}'), ("c1", "g", "{}")]


@pytest.mark.parametrize(
    "deltas",
    [
        [[piece(0, id="c0", name="f", arguments='{"a"'), piece(1, id="c1", name="g")],
         [piece(1, arguments="{"), piece(0, arguments=": 1}")], [piece(1, arguments="}")]],
        [[piece(0, id="c0", name="f", arguments='{"a"')], [piece(0, arguments=": 1}")],
         [piece(0, id="c1", name="g", arguments="{")], [piece(0, arguments="}")]],
        [[piece(id="c0", name="f", arguments='{"a"')], [piece(arguments=": 1}")],
         [piece(id="c1", name="g", arguments="{}")]],
        [[piece(id="c0", name="f", arguments='{"a": 1}'),
          piece(id="c1", name="g", arguments="{}")]],
        [[piece(0, id="c0", name="f", arguments='{"a"')], [piece(0, id="c0", arguments=": 1}")],
         [piece(0, id="c1", name="g", arguments="{}")]],
        [[piece(0, id="c0", name="f", arguments='{"a"')],
         [piece(0, id="c0", name="f", arguments=": 1}")], [piece(1, id="c1", name="g")],
         [piece(1, id="", arguments="{}")]],
        [[piece(1, id="c0", name="f", arguments='{"a": 1}')],
         [piece(2, id="c1", name="g", arguments="{}")]],
        [[piece(None, id="c0", name="f", arguments='{"a": 1}')],
         [piece("1", id="c1", name="g", arguments="{}")]],
        [[piece(0, name="f", arguments='{"a"')], [piece(0, id="c0", arguments=": 1}")],
         [piece(1, id="c1", name="g", arguments="{}")]],
    ],
    ids=["interleaved", "zero for all", "missing", "whole", "id repeated", "all repeated",
         "from one", "null and text", "id late"],
)  # fmt: skip
def test_every_way_to_number_calls_leads_to_the_same_calls(deltas: list[Any]):
    assert merged(*deltas) == EXPECTED


@pytest.mark.parametrize("index", [0, ...])
def test_calls_without_any_id_are_told_apart_by_their_names(index: object):
    whole = merged(
        [piece(index, name="f", arguments="{}"), piece(index, name="f", arguments='{"x":1}')]
    )
    apart = merged(
        [piece(index, name="f", arguments="{")],
        [piece(index, arguments="}")],
        [piece(index, name="g", arguments="{}")],
    )

    assert whole == [(None, "f", "{}"), (None, "f", '{"x":1}')]
    assert apart == [(None, "f", "{}"), (None, "g", "{}")]


def test_other_members_of_a_call_are_left_as_they_came():
    call: dict[str, object] = {
        "index": 3,
        "id": "c",
        "type": "custom",
        "custom": {"name": "n", "input": "i"},
        "x": 1,
    }

    assert ToolCallNumbers().number([call]) == [{**call, "index": 0}]


@given(
    order=st.permutations([0, 0, 0, 1, 1, 2]),
    told=st.sampled_from(["index", "zero", "missing", "both"]),
    sizes=st.lists(st.integers(1, 3), min_size=6, max_size=6),
)
@settings(deadline=None)
def test_pieces_in_any_order_and_grouping_make_the_calls_that_were_meant(
    order: list[int], told: str, sizes: list[int]
):
    taken = [0, 0, 0]
    pieces: list[dict[str, object]] = []
    for call in order:
        members: dict[str, Any] = {"arguments": ARGUMENTS[call][taken[call]]}
        if told != "index" or taken[call] == 0:
            members["id"] = f"c{call}"
        if taken[call] == 0:
            members["name"] = "f"
        index: object = {"index": call, "both": call, "zero": 0, "missing": ...}[told]
        pieces.append(piece(index, **members))
        taken[call] += 1
    deltas: list[list[dict[str, object]]] = []
    for size in sizes:
        deltas.append(pieces[:size])
        pieces = pieces[size:]

    found = merged(*[delta for delta in deltas if delta])

    assert sorted(found, key=str) == [
        (f"c{call}", "f", "".join(parts)) for call, parts in enumerate(ARGUMENTS)
    ]
