import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.reading.text import Document, list_of, section_of


def found(text: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.text) for finding in Document(text, "x").findings]


def test_plain_words_of_older_yaml_stay_texts():
    data = Document("[yes, no, on, off, 2020-01-01, 1:30, 0x10, 1_000, .inf, y]", "x").data

    assert data == ["yes", "no", "on", "off", "2020-01-01", "1:30", "0x10", "1_000", ".inf", "y"]


def test_core_scalars_take_their_types_and_quotes_keep_texts():
    data = Document("[1, -2, 010, 1.5, 1e3, true, False, null, ~, '', '1', \"true\"]", "x").data

    assert data == [1, -2, 10, 1.5, 1000.0, True, False, None, None, "", "1", "true"]


def test_keys_are_always_texts_as_they_are_written():
    assert Document("{1: a, true: b, 4.10: c, ~: d}", "x").data == {
        "1": "a",
        "true": "b",
        "4.10": "c",
        "~": "d",
    }


def test_a_key_given_twice_is_found_with_both_lines_and_the_first_one_counts():
    document = Document("a:\n  b: 1\n  c: 2\n  b: 3\n", "x")

    assert document.data == {"a": {"b": 1, "c": 2}}
    (finding,) = document.findings
    assert (finding.line, finding.path) == (4, ("a", "b"))
    assert finding.text == "given twice, first in line 2"


def test_lines_are_those_of_the_keys_or_of_the_nearest_place_above():
    document = Document("a:\n  b:\n    - x\n    - {c: 1}\n", "x")

    assert document.line_of(()) == 1
    assert document.line_of(("a", "b")) == 2
    assert document.line_of(("a", "b", 1, "c")) == 4
    assert document.line_of(("a", "b", 7)) == 2
    assert document.line_of(("a", "z", "y")) == 1


def test_sections_are_merged_and_their_own_keys_win():
    text = "one: &one {a: 1, b: 1}\ntwo: &two {b: 2, c: 2}\nall:\n  <<: [*one, *two]\n  c: 3\n"
    document = Document(text, "x")

    assert section_of(document.data)["all"] == {"a": 1, "b": 1, "c": 3}
    assert document.findings == []
    assert document.line_of(("all", "a")) == 1
    assert document.line_of(("all", "c")) == 5


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: [", 2, "broken YAML: while parsing a flow node"),
        ("a:\n\t- 1", 2, "found character '\\t'"),
        ("a: 1\n---\nb: 2", 2, "another document"),
        ("a: \x01", 1, "a character that YAML doesn't allow"),
        ("a: 1\n? [b]\n: 2", 2, "a key that is a list or a section"),
        ("a: !thing 1", 1, "a tag that isn't allowed"),
        ("a: !!python/object:os.system x", 1, "a tag that isn't allowed"),
        ("a: !!set {x: 1}", 1, "a tag that isn't allowed"),
        ("a: !!omap [x]", 1, "a tag that isn't allowed"),
        ("a: !!int word", 1, "not a value of its type"),
        ("a: " + "9" * 5000, 1, "not a value of its type"),
        ("a: &x [*x]", 1, "an alias that contains itself"),
        ("a: &x {<<: *x}", 1, "an alias that contains itself"),
        ("a: {<<: 1}", 1, "<< takes sections only"),
        ("[" * 1000, 1, "nested too deeply"),
    ],
)
def test_what_is_wrong_in_the_text_is_found_with_its_line(text: str, line: int, words: str):
    ((where, what),) = found(text)

    assert where == line
    assert words in what


def test_what_the_parser_would_quote_is_not_told():
    ((_, what),) = found("key: *sk-0123456789")

    assert what == "broken YAML: found undefined alias '...'"


def test_an_alias_used_a_million_times_is_read_once():
    lines = ["l0: &l0 [x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 7)]

    document = Document("\n".join(lines), "x")

    assert document.findings == []
    assert len(list_of(section_of(document.data)["l6"])) == 10


# JSON is YAML except for characters that YAML wants escaped
texts = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(0, 1e9) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)


@settings(deadline=None)
@given(plain)
def test_whatever_is_written_as_json_is_read_back_the_same(data: object):
    document = Document(json.dumps(data, ensure_ascii=False), "x")

    assert document.findings == []
    assert document.data == data


@settings(deadline=None)
@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%@`?,<~ \n\t1", max_size=60))
def test_any_text_is_read_or_found_wrong_but_never_raises(text: str):
    document = Document(text, "x")

    assert document.line_of(("a", 0, "b")) >= 1
    assert all(finding.line >= 1 for finding in document.findings)
