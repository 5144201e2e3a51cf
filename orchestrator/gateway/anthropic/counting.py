"""`POST /v1/messages/count_tokens`: how long a prompt is.

A model on this machine counts with its own tokenizer. Where none serves, the length is estimated
from the bytes and the answer says so: `estimated: true`.
"""

import msgspec

from orchestrator.gateway.anthropic.failure import failure, failure_event
from orchestrator.gateway.anthropic.request import CountTokensRequest, read_prompt
from orchestrator.gateway.api import Api, Direct
from orchestrator.gateway.members import Members
from orchestrator.gateway.visit import Visit
from orchestrator.request import BYTES_PER_TOKEN, PriorityRequest
from orchestrator.routing.router import Router
from orchestrator.runners.remote.pace import Steps


def read(body: Members, visit: Visit) -> Steps[Direct]:
    """Reads a body.

    Raises:
        InvalidRequestError: Something is wrong; `param` names it.
    """
    request = yield from read_prompt(body, visit.request_id)

    async def answer(router: Router) -> bytes:
        for deployment in router.route(request.model).deployments:
            counted = await deployment.count(request)
            if counted is not None:
                return msgspec.json.encode({"input_tokens": counted})
        return msgspec.json.encode({"input_tokens": _estimate(request), "estimated": True})

    return Direct(model=request.model, answer=answer)


def _estimate(request: PriorityRequest) -> int:
    tools = request.extra.get("tools")
    described = 0 if tools is None else len(msgspec.json.encode(tools))
    return request.estimated_prompt_tokens + described // BYTES_PER_TOKEN


COUNT_TOKENS = Api(
    path="/v1/messages/count_tokens",
    summary="Count the tokens of a prompt",
    body=CountTokensRequest,
    read=read,
    failure=failure,
    failure_event=failure_event,
    failure_schema="AnthropicError",
)
