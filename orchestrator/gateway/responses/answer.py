"""The response object: what was asked, what was answered, and how it ended."""

from collections.abc import Sequence

from orchestrator.errors import OrchestratorError
from orchestrator.events import Finished, FinishReason, Usage
from orchestrator.gateway.failure import failure_object
from orchestrator.gateway.responses.request import ResponsesRequest

INCOMPLETE = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.CONTENT_FILTER: "content_filter",
}
"""Endings that leave a response incomplete, by the API's reason."""
Object = dict[str, object]


def usage_of(usage: Usage | None) -> Object | None:
    """Usage in the API's shape; None if nobody counted."""
    if usage is None:
        return None
    told: Object = {
        "input_tokens": usage.prompt_tokens,
        # what was written to a cache nobody tells; the API's own types want a number
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
    if usage.estimated:
        told["estimated"] = True
    return told


class Envelope:
    """The members of a response that are known before it is answered.

    Args:
        response_id: The response's `id`.
        created: Seconds since 1970.
        given: What was asked.
        parallel: Whether several tools may be called at once.
    """

    __slots__ = ("_known",)

    def __init__(
        self, response_id: str, created: int, given: ResponsesRequest, *, parallel: bool
    ) -> None:
        self._known: Object = {
            "id": response_id,
            "object": "response",
            "created_at": created,
            "background": False,
            "instructions": given.instructions,
            "max_output_tokens": given.max_output_tokens,
            "metadata": given.metadata or {},
            "model": given.model,
            "parallel_tool_calls": parallel,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None, **(given.reasoning or {})},
            "store": False,
            "temperature": given.temperature,
            "text": {"format": {"type": "text"}, **(given.text or {})},
            "tool_choice": given.tool_choice or "auto",
            "tools": given.tools or [],
            "top_p": given.top_p,
            "truncation": given.truncation or "disabled",
        }

    def begun(self) -> Object:
        """The response while it is made."""
        return self._told("in_progress", [])

    def finished(self, finished: Finished, output: Sequence[Object]) -> Object:
        """The response at its end."""
        reason = INCOMPLETE.get(finished.finish_reason)
        told = self._told("incomplete" if reason else "completed", output)
        told["incomplete_details"] = {"reason": reason} if reason else None
        told["usage"] = usage_of(finished.usage)
        return told

    def failed(self, error: OrchestratorError, output: Sequence[Object]) -> Object:
        """The response that broke off."""
        told = failure_object(error)["error"]
        return {**self._told("failed", output), "error": told}

    def _told(self, status: str, output: Sequence[Object]) -> Object:
        return {
            **self._known,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": output,
            "usage": None,
        }
