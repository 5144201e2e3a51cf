"""Whatever stands in a body: each API reads it, or refuses it as one of ours."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import RequestError
from orchestrator.gateway.api import Api
from orchestrator.gateway.app import APIS
from orchestrator.gateway.failure import status_of
from orchestrator.gateway.members import decode
from orchestrator.gateway.visit import Visit

WORDS = st.sampled_from(
    [
        "user", "assistant", "system", "tool", "text", "image", "image_url", "document", "tool_use",
        "tool_result", "thinking", "redacted_thinking", "message", "function_call", "reasoning",
        "function_call_output", "input_text", "output_text", "refusal", "input_image", "function",
        "base64", "url", "json_schema", "auto", "any", "allowed_tools", "custom", "",
    ]
)  # fmt: skip
NAMES = st.sampled_from(
    [
        "type", "role", "content", "text", "source", "data", "media_type", "url", "id", "name",
        "input", "tool_use_id", "is_error", "signature", "call_id", "arguments", "output",
        "summary", "encrypted_content", "image_url", "tools", "function", "format", "schema",
        "effort", "user_id", "mode", "detail", "title",
    ]
)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats(0, 2) | st.text() | WORDS
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.path)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_any_body_is_read_or_refused_by_name(api: Api, data: st.DataObject) -> None:
    fields = st.sampled_from(sorted({*api.body.__struct_fields__, "unheard"} - {"model"}))
    body = data.draw(st.dictionaries(fields, VALUES, max_size=6)) | {"model": "m"}
    for name in ("messages", "input", "documents"):
        if name in api.body.__struct_fields__ and data.draw(st.booleans()):
            item = st.dictionaries(NAMES, VALUES, min_size=1, max_size=5)
            body[name] = data.draw(st.lists(item, min_size=1, max_size=3))
    visit = Visit(method="POST", path=api.path, request_id="r", headers={}, started_at=0.0)

    refused: list[RequestError] = []
    try:
        api.read(decode(json.dumps(body).encode(), api.body), visit)
    except RequestError as error:
        refused.append(error)

    assert {status_of(error) for error in refused} <= {400, 413}
    assert all(api.failure(error, "r") for error in refused)
