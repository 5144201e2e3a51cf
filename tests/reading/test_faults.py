import pytest

from orchestrator.reading.faults import nearest, path_text, report, shown
from orchestrator.reading.text import Finding


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("eight", '"eight"'),
        (8, "8"),
        (True, "true"),
        (None, "null"),
        (1.5, "1.5"),
        ([1, "a"], "a list"),
        ({"a": 1}, "a section"),
        ("two\nlines", '"two\\nlines"'),
        ("é", '"é"'),
        ("a " * 40, '"' + ("a " * 40)[:37] + '..."'),
        (10**60, "1" + "0" * 36 + "..."),
    ],
)
def test_a_value_is_shown_as_the_file_would_write_it(value: object, text: str):
    assert shown(value) == text


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-0123456789",
        "hf_abcdefghijkl",
        "Bearer abc",
        "0123456789abcdef0123456789abcdef",
        "x" * 29 + "sk-0123456789abcdef",
    ],
)
def test_what_looks_like_a_secret_is_masked_wherever_it_stands(secret: str):
    assert secret not in shown(secret)
    assert "0123456789" not in shown(secret)
    assert secret not in path_text(("deployments", secret))
    assert secret not in nearest(secret, ["slots"])


def test_a_path_quotes_only_what_would_be_misread():
    assert path_text(()) == ""
    assert path_text(("routes", "chat", "deployments", 1)) == "routes.chat.deployments[1]"
    assert path_text(("deployments", "gpt-4.1", "slots")) == 'deployments."gpt-4.1".slots'


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("slot", 'did you mean "slots"?'),
        ("Slots", 'did you mean "slots"?'),
        ("base-url", 'did you mean "base_url"?'),
        ("xyz", "slots, base_url or queue is allowed"),
    ],
)
def test_an_unknown_word_is_answered_with_the_nearest_or_with_all(word: str, hint: str):
    assert nearest(word, ["slots", "base_url", "queue"]) == hint


def test_an_unknown_word_where_none_is_known_says_so():
    assert nearest("word", []) == "nothing is allowed"


def test_findings_are_reported_by_line_and_each_one_once():
    first = Finding(line=2, path=("a", 0), text="wrong")
    second = Finding(line=10, path=(), text="wrong too")

    assert report("x.yaml", [second, first, first]) == (
        "x.yaml:2: a[0]: wrong\nx.yaml:10: wrong too"
    )
