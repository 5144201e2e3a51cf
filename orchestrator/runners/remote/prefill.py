"""A request for the rest of an answer: the text so far stands last, as the model's own turn.

Nothing is added to it. Whether a provider goes on with such a message, or takes it for a finished
turn, is known to whoever writes the configuration (`prefill`).
"""

from dataclasses import replace

from orchestrator.events import Finished
from orchestrator.request import Message, PriorityRequest
from orchestrator.resume import Resume


def for_the_rest(request: PriorityRequest, resume: Resume) -> PriorityRequest:
    """Returns the request with the answer so far as its last message, and fewer tokens to come."""
    messages, text = list(request.messages), resume.text
    if messages[-1].role == "assistant":  # the caller had begun the answer itself
        last = messages.pop()
        text = last.text + text
    limit = request.sampling.max_tokens
    sampling = request.sampling
    if limit is not None:
        sampling = replace(sampling, max_tokens=max(1, limit - resume.tokens))
    return replace(request, messages=[*messages, Message("assistant", text)], sampling=sampling)


def of_the_whole(finished: Finished, resume: Resume) -> Finished:
    """Returns the ending with what was sent before counted as the answer, not as the prompt."""
    usage, before = finished.usage, resume.tokens
    if usage is None:
        return finished
    return replace(
        finished,
        usage=replace(
            usage,
            prompt_tokens=max(0, usage.prompt_tokens - before),
            completion_tokens=usage.completion_tokens + before,
        ),
    )
