"""Streams of Gemini in the shape of its documents, and a deployment to ask for them."""

import contextlib
import json
from typing import Any

import httpx

from orchestrator.runners.remote.gemini import factory
from orchestrator.runners.remote.gemini_request import GeminiSettings
from tests.fakes.sse_server import SseServer
from tests.runners.remote.asking import Asker
from tests.runners.remote.asking import asking as asking_any


def asking(
    server: SseServer | str, transport: httpx.AsyncBaseTransport | None = None, **given: Any
) -> contextlib.AbstractAsyncContextManager[Asker]:
    return asking_any(server, transport, kind=GeminiSettings, make=factory, **given)


def response(*parts: object, finish: str | None = None, **members: object) -> dict[str, object]:
    candidate: dict[str, object] = {"index": 0}
    if parts:
        candidate["content"] = {"parts": list(parts), "role": "model"}
    if finish is not None:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "modelVersion": "gemini-2.5-flash",
        "responseId": "Il0taoSYJ5Cez7IPrcfUkQw",
        **members,
    }


def sent(*parts: object, finish: str | None = None, **members: object) -> bytes:
    """One event; the API ends its lines with CRLF."""
    payload = response(*parts, finish=finish, **members)
    text = json.dumps(payload, separators=(",", ":"), ensure_ascii=False)
    return f"data: {text}\r\n\r\n".encode()


def counted(candidates: int, thoughts: int = 0, **members: int) -> dict[str, Any]:
    usage = {
        "promptTokenCount": 11,
        "candidatesTokenCount": candidates,
        "totalTokenCount": 11 + candidates + thoughts,
        **({"thoughtsTokenCount": thoughts} if thoughts else {}),
        **members,
    }
    return {"usageMetadata": usage}


SIGNATURE = "EjQKMgEMOdbH"
TEXTS = ("Hel", "lo", " 你好", " 😀!")
HELLO = (
    sent({"text": TEXTS[0]}, **counted(1)),
    sent({"text": TEXTS[1]}, **counted(2)),
    sent({"text": TEXTS[2]}, **counted(4)),
    sent({"text": TEXTS[3]}, **counted(6)),
    sent({"text": ""}, finish="STOP", **counted(7, cachedContentTokenCount=5)),
)
CALLS = (
    sent({"text": "**Which city?**", "thought": True}, **counted(0, 6)),
    sent({"text": "I'll look."}, **counted(4, 20)),
    sent(
        {
            "functionCall": {"name": "get_weather", "args": {"location": "Boston", "days": 2}},
            "thoughtSignature": SIGNATURE,
        },
        {"functionCall": {"name": "now", "args": {}, "id": "fc-7"}},
        **counted(31, 20),
    ),
    sent({"text": "", "thoughtSignature": "Ew=="}, finish="STOP", **counted(31, 20)),
)
