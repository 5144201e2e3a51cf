"""Requests and readers for the tests of the local runner."""

from contextlib import aclosing

from orchestrator.channel import Channel
from orchestrator.events import Finished
from orchestrator.request import Message, PriorityRequest, SamplingParams
from orchestrator.runners.lease import Lease, StepLimits


def request(text="say 3", *, messages=None, extra=None, **sampling):
    return PriorityRequest(
        request_id="r1",
        model="local",
        messages=messages or [Message("user", text)],
        sampling=SamplingParams(**sampling),
        deadline=1e9,
        channel=Channel(),
        extra=extra or {},
    )


def lease():
    return Lease(StepLimits(), lambda expired: None)


async def answer(runner, asked):
    """Reads a whole answer: its text, and the ending."""
    text = ""
    ending = None
    async with aclosing(runner.generate(asked, lease())) as events:
        async for event in events:
            assert ending is None
            if isinstance(event, Finished):
                ending = event
            else:
                text += event.text
    return text, ending
