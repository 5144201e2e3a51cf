"""Errors in OpenAI's shape."""

import json

import pytest

from orchestrator.errors import (
    InvalidRequestError,
    OrchestratorError,
    QueueFullError,
    RequestCanceledError,
    SlowConsumerError,
    WorkerCrashedError,
)
from orchestrator.gateway.failure import failure_event, failure_object, retry_after, status_of


def all_errors(kind: type[OrchestratorError] = OrchestratorError) -> list[type[OrchestratorError]]:
    own = [kind] if kind.__init__ is OrchestratorError.__init__ else []  # others need a state
    return own + [error for child in kind.__subclasses__() for error in all_errors(child)]


@pytest.mark.parametrize("kind", all_errors())
def test_every_error_has_a_status_and_the_four_members(kind: type[OrchestratorError]) -> None:
    error = kind("it broke", param="model")

    told = failure_object(error)["error"]

    assert told == {"message": "it broke", "type": kind.kind, "param": "model", "code": kind.code}
    assert 400 <= status_of(error) < 600


@pytest.mark.parametrize("kind", [RequestCanceledError, SlowConsumerError])
def test_499_is_never_sent_to_a_caller(kind: type[OrchestratorError]) -> None:
    assert status_of(kind("gone")) == 500


@pytest.mark.parametrize(
    ("seconds", "header"), [(0.2, b"1"), (1.0, b"1"), (1.01, b"2"), (60.0, b"60")]
)
def test_retry_after_is_rounded_up_to_whole_seconds(seconds: float, header: bytes) -> None:
    assert retry_after(seconds) == ((b"retry-after", header),)


@pytest.mark.parametrize("seconds", [None, 0.0, -1.0, float("nan"), float("inf")])
def test_a_wait_that_is_none_sends_no_header(seconds: float | None) -> None:
    assert retry_after(seconds) == ()


def test_the_root_cause_is_told_if_it_is_one_of_ours() -> None:
    error = QueueFullError("full")
    error.__cause__ = WorkerCrashedError("killed by signal 9")

    message = failure_object(error)["error"]["message"]

    assert message == "full (cause: WorkerCrashedError: killed by signal 9)"


def test_a_foreign_cause_stays_in_the_log() -> None:
    error = WorkerCrashedError("the host died")
    error.__cause__ = RuntimeError("prompt: my secret")

    assert failure_object(error)["error"]["message"] == "the host died"


def test_half_a_character_in_a_message_is_replaced() -> None:
    event = failure_event(WorkerCrashedError("file \udcff"))

    assert json.loads(event.removeprefix(b"data: "))["error"]["message"] == "file ?"
    assert event.endswith(b"\n\n")


def test_what_a_caller_sent_is_one_short_line_in_an_error() -> None:
    name = "a\x1b[31m\nforged\u2028" + "x" * 10_000_000

    told = failure_object(InvalidRequestError(f"no field is called {name}", param=name))["error"]

    assert (told["param"] or "").startswith("a\\x1b[31m\\nforged\\u2028xx")
    assert len(told["param"] or "") < 120
    assert len(told["message"] or "") < 2100
    assert (told["message"] or "").isprintable()
