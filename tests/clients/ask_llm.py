"""Asks through llm, whose models stand in a file of its folder: `ask_llm.py URL FOLDER`."""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

URL, FOLDER = sys.argv[1], Path(sys.argv[2])
os.environ["LLM_USER_PATH"] = str(FOLDER)
MODELS = f"""
- model_id: ours
  model_name: m
  api_base: {URL}/v1
  api_key_name: none
"""
FOLDER.joinpath("extra-openai-models.yaml").write_text(MODELS, "utf-8")
FOLDER.joinpath("keys.json").write_text('{"none": "none", "openai": "none"}', "utf-8")
llm: Any = importlib.import_module("llm")

model = llm.get_model("ours")
told = {
    "text": model.prompt("hi", stream=False).text(),
    "streamed": "".join(model.prompt("hi", stream=True)),
}
sys.stdout.write("\n" + json.dumps(told))
