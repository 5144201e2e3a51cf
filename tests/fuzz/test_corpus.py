from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.targets import check_answer, check_sse

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize(("name", "check"), [("sse", check_sse), ("answers", check_answer)])
def test_every_input_that_was_ever_found_keeps_the_promises(
    name: str, check: Callable[[bytes], None]
):
    inputs = sorted(CORPUS.joinpath(name).iterdir())

    for each in inputs:
        check(each.read_bytes())

    assert inputs
