"""`POST /v1/messages`, Anthropic's Messages API."""

from collections.abc import Sequence

from orchestrator.events import Finished, TokenChunk
from orchestrator.gateway.anthropic.answer import whole_message
from orchestrator.gateway.anthropic.failure import failure, failure_event
from orchestrator.gateway.anthropic.request import MessagesRequest, read_messages
from orchestrator.gateway.anthropic.stream import MessageWriter
from orchestrator.gateway.api import Api, Call, StreamWriter
from orchestrator.gateway.members import TIMEOUT_HEADER, Members
from orchestrator.gateway.visit import Visit
from orchestrator.runners.remote.pace import Steps

MESSAGES_PATH = "/v1/messages"


def read(body: Members, visit: Visit) -> Steps[Call]:
    """Reads a body.

    Raises:
        InvalidRequestError: Something is wrong; `param` names it.
    """
    header = visit.header(TIMEOUT_HEADER)
    request, streamed = yield from read_messages(body, visit.request_id, header)
    message_id = f"msg_{visit.request_id}"

    def stream() -> StreamWriter:
        return MessageWriter(message_id=message_id, request=request)

    def whole(chunks: Sequence[TokenChunk], finished: Finished) -> bytes:
        return whole_message(chunks, finished, message_id=message_id, request=request)

    return Call(request=request, stream=stream if streamed else None, whole=whole)


MESSAGES = Api(
    path=MESSAGES_PATH,
    summary="Answer a conversation, with Anthropic's messages",
    body=MessagesRequest,
    read=read,
    failure=failure,
    failure_event=failure_event,
    failure_schema="AnthropicError",
)
