"""Asks through langchain-openai: `ask_langchain_openai.py URL`."""

import importlib
import json
import sys
from typing import Any

client: Any = importlib.import_module("langchain_openai")
URL = f"{sys.argv[1]}/v1"
SCHEMA = {
    "title": "User",
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}

model = client.ChatOpenAI(model="m", base_url=URL, api_key="none", max_retries=0)
responses = client.ChatOpenAI(
    model="m", base_url=URL, api_key="none", max_retries=0, use_responses_api=True
)
vectors = client.OpenAIEmbeddings(
    model="v", base_url=URL, api_key="none", check_embedding_ctx_length=False
)
tool = {"type": "function", "function": {"name": "User", "parameters": SCHEMA}}
(called,) = model.bind_tools([tool]).invoke("hi").tool_calls
told = {
    "text": model.invoke("hi").content,
    "streamed": "".join(chunk.content for chunk in model.stream("hi")),
    "responses": responses.invoke("hi").text,
    "tool": [called["name"], called["args"]],
    "structured": model.with_structured_output(SCHEMA).invoke("hi"),
    "vector": vectors.embed_query("a"),
}
sys.stdout.write("\n" + json.dumps(told))
