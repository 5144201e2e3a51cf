"""What a key is, and that nothing of it is kept but a hash."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from orchestrator.callers.key import digest_of, id_of, is_key, make_key, shown


def test_a_key_is_itself_and_no_other() -> None:
    (first_id, first), (second_id, second) = make_key(), make_key()

    assert id_of(first) == first_id != second_id
    assert is_key(first, digest_of(first))
    assert not is_key(second, digest_of(first))
    assert first not in shown(first_id)
    assert first.startswith(shown(first_id).removesuffix("..."))


@pytest.mark.parametrize("key", ["", "sk-orc", "sk-orc-", "sk-", "x" * 10_000, "sk-orc-a-ü"])
def test_what_is_no_key_is_nobodys(key: str) -> None:
    assert not is_key(key, None)
    assert not is_key(key, digest_of(make_key()[1]))


@settings(deadline=None)
@given(st.text(max_size=300), st.booleans())
def test_no_text_is_a_key_of_another_digest(text: str, known: bool) -> None:
    key = text.encode("utf-8", "replace").decode()

    assert not is_key(key, digest_of(make_key()[1]) if known else None)
    assert "-" not in id_of(key)
