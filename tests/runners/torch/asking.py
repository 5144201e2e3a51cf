"""Requests and readers for the tests of the local runner."""

from contextlib import aclosing
from typing import Any

from orchestrator.channel import Channel
from orchestrator.events import Finished
from orchestrator.request import Message, PriorityRequest, SamplingParams
from orchestrator.runners.base import Runner
from orchestrator.runners.lease import Lease, StepLimits
from orchestrator.runners.torch.process import HostProcess
from orchestrator.runners.torch.runner import TorchRunner


def request(
    text: str = "say 3",
    *,
    messages: list[Message] | None = None,
    extra: dict[str, object] | None = None,
    **sampling: Any,
) -> PriorityRequest:
    return PriorityRequest(
        request_id="r1",
        model="local",
        messages=messages or [Message("user", text)],
        sampling=SamplingParams(**sampling),
        deadline=1e9,
        channel=Channel(),
        extra=extra or {},
    )


def lease() -> Lease:
    return Lease(StepLimits(), lambda _: None)


async def answer(
    runner: Runner, asked: PriorityRequest, watched: Lease | None = None
) -> tuple[str, Finished]:
    """Reads a whole answer: its text, and the ending."""
    text = ""
    ending: Finished | None = None
    async with aclosing(runner.generate(asked, watched or lease())) as events:
        async for event in events:
            assert ending is None
            if isinstance(event, Finished):
                ending = event
            else:
                text += event.text
    assert ending is not None
    return text, ending


def process_of(runner: Runner) -> HostProcess:
    assert isinstance(runner, TorchRunner)
    assert runner.process is not None
    return runner.process


def pid_of(runner: Runner) -> int:
    return process_of(runner).pid
