"""Asks through instructor, in three ways: `ask_instructor.py URL`."""

import importlib
import json
import sys
from typing import Any

from pydantic import BaseModel

instructor: Any = importlib.import_module("instructor")
openai: Any = importlib.import_module("openai")
anthropic: Any = importlib.import_module("anthropic")
URL = sys.argv[1]
MESSAGES = [{"role": "user", "content": "hi"}]


class User(BaseModel):
    name: str
    age: int


def ask(mode: Any) -> Any:
    plain = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    client = instructor.from_openai(plain, mode=mode)
    return client.chat.completions.create(model="m", messages=MESSAGES, response_model=User)


claude = instructor.from_anthropic(anthropic.Anthropic(base_url=URL, api_key="none"))
told = {
    "tool": ask(instructor.Mode.TOOLS).model_dump(),
    "schema": ask(instructor.Mode.JSON_SCHEMA).model_dump(),
    "anthropic": claude.messages.create(
        model="m", max_tokens=9, messages=MESSAGES, response_model=User
    ).model_dump(),
}
sys.stdout.write("\n" + json.dumps(told))
