"""Bugs for a running gateway, named on a command line."""

import pytest

from orchestrator.chaos.attendant.bugs import LIVE_BUGS, bugs_named
from orchestrator.errors import ConfigError


def test_several_bugs_are_named_with_commas_between_them() -> None:
    assert bugs_named("leak-a-slot, lie-in-readyz") == [
        LIVE_BUGS["leak-a-slot"],
        LIVE_BUGS["lie-in-readyz"],
    ]


def test_an_empty_list_plants_no_bug_at_all() -> None:
    assert bugs_named("") == []


def test_a_bug_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"'eat-a-token'.* these can: swallow-a-crash, "):
        bugs_named("leak-a-slot,eat-a-token")
