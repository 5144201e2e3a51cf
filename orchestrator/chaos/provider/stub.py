"""A provider that speaks OpenAI's chat completions and counts; see `chaos.stub.words`."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from orchestrator.chaos.provider.front import Front, Reply
from orchestrator.chaos.provider.toxics import Landed
from orchestrator.chaos.provider.wire import Asked
from orchestrator.chaos.stub.words import asked as asked_for
from orchestrator.chaos.stub.words import word
from orchestrator.reading.text import list_of, section_of

JSON_HEADERS = {"content-type": "application/json"}
MODEL = "stub"


class Stub(Front):
    """The stub.

    Args:
        port: 0 takes a free one.
        seed: Of the choice whom a toxic meets.
        token_seconds: Between two tokens.
        on_landed: Told of every strike of a toxic.
        on_start: Told of every request that arrives.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        seed: int = 0,
        token_seconds: float = 0.01,
        on_landed: Landed | None = None,
        on_start: Callable[[str | None], None] | None = None,
    ) -> None:
        super().__init__(port=port, seed=seed, on_landed=on_landed, on_start=on_start)
        self._pace = token_seconds

    @property
    def url(self) -> str:
        """The base URL to configure."""
        return f"http://127.0.0.1:{self.port}/v1"

    @contextlib.asynccontextmanager
    async def origin(self, asked: Asked) -> AsyncGenerator[Reply]:
        """Counts, or lists the one model."""
        if not asked.target.endswith("/chat/completions"):
            listed = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
            yield Reply(200, body=json.dumps(listed).encode(), headers=JSON_HEADERS)
            return
        try:
            call = section_of(json.loads(asked.body))
        except ValueError:
            error = {"error": {"message": "not JSON", "type": "invalid_request_error"}}
            yield Reply(400, body=json.dumps(error).encode(), headers=JSON_HEADERS)
            return
        last = section_of((list_of(call.get("messages")) or [None])[-1])
        tokens, name = asked_for(str(last.get("content", "")))
        if call.get("stream") is True:
            yield Reply(200, events=self._count(tokens, name))
        else:
            yield Reply(200, body=await self._whole(tokens, name), headers=JSON_HEADERS)

    async def _count(self, tokens: int, name: str) -> AsyncIterator[bytes]:
        for number in range(tokens):
            await asyncio.sleep(self._pace)
            yield _event({"index": 0, "delta": {"content": word(number, name)}})
        usage = {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}
        yield _event({"index": 0, "delta": {}, "finish_reason": "stop"}, usage)
        yield b"data: [DONE]\n\n"

    async def _whole(self, tokens: int, name: str) -> bytes:
        await asyncio.sleep(self._pace * tokens)
        text = "".join(word(number, name) for number in range(tokens))
        message = {"role": "assistant", "content": text}
        return json.dumps(
            {
                "object": "chat.completion",
                "model": MODEL,
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 3, "completion_tokens": tokens},
            }
        ).encode()


def _event(choice: dict[str, object], usage: dict[str, int] | None = None) -> bytes:
    chunk: dict[str, object] = {
        "object": "chat.completion.chunk",
        "model": MODEL,
        "choices": [choice],
    }
    if usage is not None:
        chunk["usage"] = usage
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"
