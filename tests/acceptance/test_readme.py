"""The README's examples, run as a reader would run them."""

import asyncio
import json
import re
import shlex
import sys

import pytest

from tests.documents import ROOT
from tests.gateway.process import gateway_process

pytestmark = [pytest.mark.live, pytest.mark.timeout(150)]

LIMIT = 120
"""Seconds for loading the model and a short answer; about 20 on two idle cores."""


def blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


async def run_python(code: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()


async def test_the_sdk_example_of_the_readme_answers() -> None:
    async with asyncio.timeout(LIMIT):
        output = await run_python(blocks("python")[0])

    assert "Paris" in output
    assert "Usage(prompt_tokens=" in output


async def test_the_gateway_examples_of_the_readme_stream() -> None:
    curl = next(block for block in blocks("sh") if block.startswith("curl -N"))

    async with (
        asyncio.timeout(LIMIT),
        gateway_process(ROOT / "config" / "gateway.yaml") as (gateway, client),
    ):
        await gateway.prints(r"^curl ")
        example = blocks("python")[1].replace("http://127.0.0.1:8080", gateway.url)
        # greedy, for by chance a small model answers with nothing at all, or doesn't stop
        output = await run_python(example.replace("stream=True,", "stream=True, temperature=0,"))
        words = shlex.split(curl.replace("http://127.0.0.1:8080", gateway.url))
        url = next(word for word in words if word.startswith("http"))
        body = json.loads(words[words.index("-d") + 1])
        answer = await client.post(url, json=body | {"temperature": 0})

    assert output.strip()
    assert answer.status_code == 200
    assert answer.text.endswith("data: [DONE]\n\n")
