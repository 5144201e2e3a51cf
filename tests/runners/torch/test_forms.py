import pytest

from orchestrator.errors import InvalidRequestError
from orchestrator.runners.torch.forms import ANY_OBJECT, MOST_BYTES, Form, form_of
from orchestrator.runners.torch.wishes import wishes_of

SCHEMA: dict[str, object] = {"type": "object", "properties": {"a": {"type": "integer"}}}


def by_schema(schema: object, **others: object) -> dict[str, object]:
    described = {"name": "answer", "schema": schema, **others}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


@pytest.mark.parametrize(
    ("extra", "form"),
    [
        ({}, None),
        ({"response_format": None, "structured_outputs": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Form("schema", ANY_OBJECT)),
        (
            by_schema(SCHEMA, strict=True, description="an answer"),
            Form("schema", '{"type":"object","properties":{"a":{"type":"integer"}}}'),
        ),
        ({"structured_outputs": {"regex": "[a-z]+"}}, Form("regex", "[a-z]+")),
    ],
)
def test_the_form_is_read_from_the_fields_of_a_body(
    extra: dict[str, object], form: Form | None
) -> None:
    assert form_of(extra) == form
    assert wishes_of(extra).form == form


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "x": 1}}, "response_format.x"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (by_schema(None), "response_format.json_schema.schema"),
        (by_schema({"const": {1, 2}.__iter__}), "response_format.json_schema.schema"),
        (by_schema({"const": "half \ud83d"}), "response_format.json_schema.schema"),
        (by_schema(SCHEMA, colour="red"), "response_format.json_schema.colour"),
        (by_schema({"const": "x" * MOST_BYTES}), "response_format"),
        ({"structured_outputs": "a+"}, "structured_outputs"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "\ud83d"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        (by_schema(SCHEMA) | {"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
)
def test_a_form_that_is_named_wrongly_is_refused_by_its_place(
    extra: dict[str, object], param: str
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        form_of(extra)

    assert refusal.value.param == param
