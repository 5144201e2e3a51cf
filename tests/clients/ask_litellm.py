"""Asks through litellm, in OpenAI's and in Anthropic's words: `ask_litellm.py URL`."""

import importlib
import json
import sys
from typing import Any

litellm: Any = importlib.import_module("litellm")
URL = sys.argv[1]
MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "User", "parameters": {"type": "object"}}}


def ask(**members: Any) -> Any:
    return litellm.completion(
        model="openai/m", api_base=f"{URL}/v1", api_key="none", messages=MESSAGES, **members
    )


claude = litellm.completion(
    model="anthropic/m", api_base=URL, api_key="none", messages=MESSAGES, max_tokens=9
)
pieces = [chunk.choices[0].delta.content or "" for chunk in ask(stream=True)]
called = ask(tools=[TOOL]).choices[0].message.tool_calls[0].function
vectors = litellm.embedding(
    model="openai/v", api_base=f"{URL}/v1", api_key="none", input=["a"], encoding_format="float"
)
told = {
    "text": ask().choices[0].message.content,
    "streamed": "".join(pieces),
    "anthropic": claude.choices[0].message.content,
    "tool": [called.name, json.loads(called.arguments)],
    "vector": vectors.data[0]["embedding"],
}
sys.stdout.write("\n" + json.dumps(told))
