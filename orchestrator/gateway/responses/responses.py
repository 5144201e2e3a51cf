"""`POST /v1/responses`, OpenAI's Responses API."""

from collections.abc import Sequence

import msgspec

from orchestrator.events import Finished, TokenChunk
from orchestrator.gateway.api import Api, Call, StreamWriter
from orchestrator.gateway.chat import now
from orchestrator.gateway.members import TIMEOUT_HEADER, Members
from orchestrator.gateway.responses.answer import Envelope
from orchestrator.gateway.responses.request import ResponsesRequest, read_responses
from orchestrator.gateway.responses.stream import ResponseWriter
from orchestrator.gateway.visit import Visit
from orchestrator.runners.remote.pace import Steps

RESPONSES_PATH = "/v1/responses"


def read(body: Members, visit: Visit) -> Steps[Call]:
    """Reads a body.

    Raises:
        InvalidRequestError: Something is wrong; `param` names it.
    """
    header = visit.header(TIMEOUT_HEADER)
    request, given = yield from read_responses(body, visit.request_id, header)
    parallel = request.extra.get("parallel_tool_calls") is not False

    def writer() -> ResponseWriter:
        envelope = Envelope(f"resp_{visit.request_id}", now(), given, parallel=parallel)
        return ResponseWriter(envelope, suffix=visit.request_id)

    def stream() -> StreamWriter:
        return writer()

    def whole(chunks: Sequence[TokenChunk], finished: Finished) -> bytes:
        made = writer()
        made.write(chunks)
        return msgspec.json.encode(made.complete(finished))

    return Call(request=request, stream=stream if given.stream else None, whole=whole)


RESPONSES = Api(
    path=RESPONSES_PATH,
    summary="Answer a conversation, with OpenAI's responses",
    body=ResponsesRequest,
    read=read,
)
