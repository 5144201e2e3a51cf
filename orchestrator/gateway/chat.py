"""`POST /v1/chat/completions`, OpenAI's chat completions."""

import time
from collections.abc import Sequence

from orchestrator.events import Finished, TokenChunk
from orchestrator.gateway.answer import whole_answer
from orchestrator.gateway.api import Api, Call, StreamWriter
from orchestrator.gateway.chat_request import ChatCompletionRequest, read_call
from orchestrator.gateway.chunks import ChunkWriter
from orchestrator.gateway.members import TIMEOUT_HEADER, Members
from orchestrator.gateway.visit import Visit
from orchestrator.runners.remote.pace import Steps

CHAT_PATH = "/v1/chat/completions"


def read(body: Members, visit: Visit) -> Steps[Call]:
    """Reads a body.

    Raises:
        InvalidRequestError: Something is wrong; `param` names it.
    """
    call = yield from read_call(body, visit.request_id, visit.header(TIMEOUT_HEADER))
    completion_id, model = f"chatcmpl-{visit.request_id}", call.request.model

    def stream() -> StreamWriter:
        return ChunkWriter(
            completion_id=completion_id,
            model=model,
            created=now(),
            include_usage=call.include_usage,
            several=call.request.sampling.n > 1,
        )

    def whole(chunks: Sequence[TokenChunk], finished: Finished) -> bytes:
        return whole_answer(
            chunks, finished, completion_id=completion_id, model=model, created=now()
        )

    return Call(request=call.request, stream=stream if call.stream else None, whole=whole)


def now() -> int:
    """Seconds since 1970, for an answer's `created`."""
    return int(time.time())  # noqa: TID251 - OpenAI's `created` is wall time; nothing is measured by it


CHAT = Api(path=CHAT_PATH, summary="Answer a conversation", body=ChatCompletionRequest, read=read)
