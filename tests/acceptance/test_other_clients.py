"""The gateway as other people's clients see it; `make clients` installs them and runs this.

They are 90 packages that want versions of their own, and take a minute of work to install beside
half a gigabyte of network, so the ordinary suite skips them: it asks through the official clients.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.request import PriorityRequest, Work
from tests.fakes.scripted import Line, Stage
from tests.gateway.serving import serving

ROOT = Path(__file__).parent.parent.parent
PYTHON = ROOT / os.environ.get("CLIENTS_VENV", ".venv-clients") / "bin" / "python"
USER = {"name": "Ada", "age": 36}
USAGE = Usage(prompt_tokens=3, completion_tokens=2)

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not PYTHON.exists(), reason="their 90 packages take minutes to install; make clients does"
    ),
]


def answer(request: PriorityRequest, _: int) -> Sequence[Line]:
    """Calls the tool if there is one, gives JSON if it is wanted, else says hello."""
    if request.work is Work.EMBED:
        return ['[{"object":"embedding","index":0,"embedding":[0.5,-1.0]}]', Finished(
            FinishReason.STOP, USAGE)]  # fmt: skip
    tools: Any = request.extra.get("tools")
    if tools:
        function = {"name": tools[0]["function"]["name"], "arguments": json.dumps(USER)}
        call = {"index": 0, "id": "t1", "type": "function", "function": function}
        chunk = TokenChunk("", 1, {"tool_calls": [call]})
        return [chunk, Finished(FinishReason.TOOL_CALLS, USAGE)]
    if request.extra.get("response_format"):
        return [json.dumps(USER), Finished(FinishReason.STOP, USAGE)]
    return ["Hel", "lo", Finished(FinishReason.STOP, USAGE)]


async def told_by(program: str, *arguments: str) -> dict[str, Any]:
    vectors = Stage(answer, works=frozenset({Work.EMBED}))
    async with asyncio.timeout(240), serving({"m": Stage(answer), "v": vectors}) as served:
        process = await asyncio.create_subprocess_exec(
            *(str(PYTHON), str(ROOT / "tests" / "clients" / program), served.url, *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return json.loads(output.splitlines()[-1])


async def test_litellm_asks_in_the_words_of_two_apis() -> None:
    told = await told_by("ask_litellm.py")

    assert told == {
        "text": "Hello", "streamed": "Hello", "anthropic": "Hello", "tool": ["User", USER],
        "vector": [0.5, -1.0],
    }  # fmt: skip


async def test_langchain_asks_streams_calls_tools_and_embeds() -> None:
    told = await told_by("ask_langchain_openai.py")

    assert told == {
        "text": "Hello", "streamed": "Hello", "responses": "Hello", "tool": ["User", USER],
        "structured": USER, "vector": [0.5, -1.0],
    }  # fmt: skip


async def test_instructor_gets_its_objects_from_two_apis() -> None:
    told = await told_by("ask_instructor.py")

    assert told == {"tool": USER, "schema": USER, "anthropic": USER}


async def test_llm_asks_whole_and_streamed(tmp_path: Path) -> None:
    told = await told_by("ask_llm.py", str(tmp_path))

    assert told == {"text": "Hello", "streamed": "Hello"}
