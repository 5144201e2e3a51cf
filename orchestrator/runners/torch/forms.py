"""The form that an answer is to have, as its request names it.

`response_format` is OpenAI's: any JSON object, or JSON by a schema. `structured_outputs` with a
`regex` is what vLLM calls it. Whether a model's host can keep to a form only the host knows.
"""

from collections.abc import Mapping
from typing import Literal, cast

import msgspec

from orchestrator.errors import InvalidRequestError
from orchestrator.request import is_unicode

MOST_BYTES = 32 << 10
"""Of a schema or regex: all running answers wait while it is read, 0.2 s for one of this size."""
FIELDS = frozenset({"response_format", "structured_outputs"})
SCHEMA_FIELDS = frozenset({"name", "description", "schema", "strict"})
ANY_OBJECT = '{"type":"object"}'

Fields = Mapping[str, object]


class Form(msgspec.Struct, frozen=True, array_like=True):
    """What an answer's text has to match, from its first character to its last."""

    kind: Literal["schema", "regex"]
    text: str

    @property
    def param(self) -> str:
        """The field that named it."""
        return "response_format" if self.kind == "schema" else "structured_outputs"


def form_of(extra: Fields) -> Form | None:
    """Reads it from the further fields of a body; None leaves the text free.

    Raises:
        InvalidRequestError: It is named wrongly; `param` says where.
    """
    form = _response_format(extra.get("response_format"))
    other = _structured_outputs(extra.get("structured_outputs"))
    if form is not None and other is not None:
        raise InvalidRequestError(
            "structured_outputs must not be given together with response_format",
            param="structured_outputs",
        )
    found = form or other
    if found is not None and len(found.text.encode()) > MOST_BYTES:
        raise InvalidRequestError(
            f"{found.param} must have at most {MOST_BYTES} bytes", param=found.param
        )
    return found


def _response_format(given: object) -> Form | None:
    if given is None:
        return None
    fields = _object(given, "response_format")
    match fields.get("type"):
        case "text":
            _only(fields, {"type"}, "response_format")
            return None
        case "json_object":
            _only(fields, {"type"}, "response_format")
            return Form("schema", ANY_OBJECT)
        case "json_schema":
            _only(fields, {"type", "json_schema"}, "response_format")
            place = "response_format.json_schema"
            described = _object(fields.get("json_schema"), place)
            _only(described, SCHEMA_FIELDS, place)
            schema = _object(described.get("schema"), f"{place}.schema")
            return Form("schema", _encoded(schema, f"{place}.schema"))
        case _:
            place = "response_format.type"
            raise InvalidRequestError(
                f"{place} must be text, json_object or json_schema", param=place
            )


def _structured_outputs(given: object) -> Form | None:
    if given is None:
        return None
    fields = _object(given, "structured_outputs")
    _only(fields, {"regex"}, "structured_outputs")
    regex, place = fields.get("regex"), "structured_outputs.regex"
    if not isinstance(regex, str) or not regex or not is_unicode(regex):
        raise InvalidRequestError(f"{place} must be a regular expression", param=place)
    return Form("regex", regex)


def _object(given: object, place: str) -> Fields:
    if not isinstance(given, Mapping):
        raise InvalidRequestError(f"{place} must be an object", param=place)
    return cast("Fields", given)


def _only(fields: Fields, known: frozenset[str] | set[str], place: str) -> None:
    for name in fields.keys() - known:
        param = f"{place}.{name}"
        raise InvalidRequestError(f"{param}: this model doesn't know the field", param=param)


def _encoded(schema: Fields, place: str) -> str:
    try:
        return msgspec.json.encode(schema).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{place} is no JSON: {error}", param=place) from error
