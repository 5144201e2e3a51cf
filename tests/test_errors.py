"""What the whole tree of errors must keep, class by class."""

from collections.abc import Iterator

import pytest

from orchestrator import errors
from orchestrator.errors import (
    EngineUnhealthyError,
    OrchestratorError,
    UpstreamServerError,
    describe,
)


def tree(root: type[OrchestratorError] = OrchestratorError) -> Iterator[type[OrchestratorError]]:
    yield root
    for branch in root.__subclasses__():
        yield from tree(branch)


@pytest.mark.parametrize("kind", list(tree()), ids=lambda kind: kind.__name__)
def test_what_an_error_means_is_whole_and_consistent(kind: type[OrchestratorError]) -> None:
    assert kind.__name__.endswith("Error")
    assert kind.status_code in {400, 401, 403, 404, 413, 422, 429, 499, 500, 502, 503, 504}
    assert kind.__doc__
    if kind.trips_breaker:
        assert kind.scope == "upstream"
    if kind.scope == "request":
        assert not kind.retryable
        assert not kind.trips_breaker
    if kind.retryable:
        assert kind.fails_over


def test_a_full_queue_and_an_unhealthy_engine_are_never_mixed_up() -> None:
    assert errors.QueueFullError.status_code == 429
    assert errors.EngineUnhealthyError.status_code == 503
    assert errors.EngineDrainingError.status_code == 503


def test_the_tree_in_the_docstring_names_every_class() -> None:
    document = errors.__doc__ or ""

    assert [kind.__name__ for kind in tree() if kind.__name__ not in document] == []


def test_the_root_cause_is_the_first_of_the_chain() -> None:
    root = OSError("reset by peer")
    middle = UpstreamServerError("502")
    middle.__cause__ = root
    outer = EngineUnhealthyError("down")
    outer.__cause__ = middle

    assert outer.root_cause is root
    assert root.__cause__ is None


def test_a_chain_that_bites_its_tail_still_has_an_end() -> None:
    first, second = UpstreamServerError("a"), UpstreamServerError("b")
    first.__cause__, second.__cause__ = second, first

    assert first.root_cause is second


class Unspeakable(Exception):  # noqa: N818 - a foreign class
    """Its text can't be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_whose_text_cannot_be_made_is_described_all_the_same() -> None:
    assert describe(Unspeakable()) == "Unspeakable: <its text could not be made>"


def test_an_error_without_a_text_is_described_by_its_class() -> None:
    assert describe(ConnectionResetError()) == "ConnectionResetError"
