"""The JSON Schema of a YAML file, for editors and for the reports of what is wrong in it."""

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from orchestrator.reading.quantities import DURATION_PATTERN, SIZE_PATTERN, duration_text, size_text


def editor_schema(model: type[BaseModel]) -> dict[str, object]:
    """Describes the YAML that the model reads, defaults spelt as in the YAML."""
    schema = model.model_json_schema(schema_generator=_EditorSchema)
    return {"$schema": _EditorSchema.schema_dialect, **schema}


class _EditorSchema(GenerateJsonSchema):
    """Pydantic's schema without made-up titles and with defaults a person can copy."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """Never: a title that repeats the key tells nothing."""
        del schema
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Spells a default as the YAML does; a section's defaults stand at its keys."""
        result = super().default_schema(schema)
        match result:
            case {"default": float() as default, "pattern": pattern} if pattern == DURATION_PATTERN:
                result["default"] = duration_text(default)
            case {"default": int() as default, "pattern": pattern} if pattern == SIZE_PATTERN:
                result["default"] = size_text(default)
            case {"default": dict(), "$ref": _}:
                del result["default"]
            case _:
                pass
        return result
