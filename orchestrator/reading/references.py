"""What the YAML refers to outside of itself: environment variables, files, addresses.

Secrets are resolved while the file is read and from then on shown by nothing but `reveal`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from orchestrator.reading.quantities import Value, not_allowed, wrong
from orchestrator.reading.text import section_of

_MAX_SECRET_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What stands around a YAML text; handed to pydantic as its context."""

    folder: Path
    """Relative paths start here: the folder of the YAML file."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    secrets: bool = True
    """Whether what `{env: NAME}` and `{file: PATH}` point to is read."""


class Secret:
    """A text that no log, message or dump shows."""

    __slots__ = ("_value", "origin", "path")

    def __init__(self, value: str, origin: str = "inline", path: Path | None = None) -> None:
        self._value = value
        self.origin = origin
        """Where it came from: `inline`, `env NAME` or `file PATH`."""
        self.path = path
        """The file, for whoever reads it again when it has changed."""

    def __repr__(self) -> str:
        return f"<Secret, {self.origin}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def reveal(self) -> str:
        """The text itself; ask for it where it is used and don't keep it."""
        return self._value

    @classmethod
    def __get_pydantic_core_schema__(cls, _: object, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            _read_secret,
            serialization=core_schema.plain_serializer_function_ser_schema(repr),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _: CoreSchema, __: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        inline = {"type": "string", "minLength": 1, "description": "The text itself."}
        environment = _reference("env", "Name of the environment variable that holds the text.")
        file = _reference("file", "Path of the file that holds the text in its only line.")
        return {"oneOf": [environment, file, inline]}


def place_of_a_file() -> Value:
    """A file's path, which may not be there yet; a relative one starts in the YAML's folder."""

    def read(value: object, info: ValidationInfo) -> Path:
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise not_allowed("the path of a file")
        return placed(value, info)

    return Value(read, {"type": "string", "minLength": 1})


def existing_file() -> Value:
    """A file's path; one that is relative starts in the folder of the YAML file."""

    def read(value: object, info: ValidationInfo) -> Path:
        if not isinstance(value, str) or not value:
            raise not_allowed("the path of a file")
        path = placed(value, info)
        try:
            found = path.is_file()
        except (OSError, ValueError):  # a name too long, a zero byte: no such file either
            found = False
        if not found:
            raise not_allowed("the path of a file that exists")
        return path

    return Value(read, {"type": "string", "minLength": 1})


def base_url() -> Value:
    """An http or https address; the final slash is dropped, so that paths can be appended."""
    allowed = "an address such as https://api.example.com/v1"

    def read(value: object, _: ValidationInfo) -> str:
        if not isinstance(value, str):
            raise not_allowed(allowed)
        parts = _split(value)
        if parts is None:
            # not told: it may hold a password in a place that can't be recognised
            raise wrong(f"not an address; {allowed} is allowed")
        if "@" in parts.netloc:
            raise wrong("an address with user or password in it; the key belongs into api_key")
        if "?" in value or "#" in value:
            raise wrong("an address with a query or fragment; only what stands before is allowed")
        path = parts.path.rstrip("/")
        for ending in ("/chat/completions", "/completions", "/models"):
            if path.endswith(ending):
                raise wrong(f"the address is one step too long; leave {ending} away")
        return f"{parts.scheme}://{parts.netloc}{path}"

    return Value(read, {"type": "string", "pattern": "^https?://[^/?#@ ]+(/[^?# ]*)?$"})


def model_place() -> Value:
    """A local model: `package:NAME/FILE`, a path, or a hub id.

    A path that begins with `./`, `../` or `~/` is made absolute; anything else is left as it is,
    because `owner/name` may be a folder here or a model on the hub.
    """
    allowed = "package:NAME/FILE, a .gguf file, a folder (./models/name) or a hub id (owner/name)"

    def read(value: object, info: ValidationInfo) -> str:
        if not isinstance(value, str) or not value.isprintable() or value != value.strip():
            raise not_allowed(allowed)
        package, slash, file = value.removeprefix("package:").partition("/")
        if value.startswith("package:") and not (
            all(part.isidentifier() for part in package.split(".")) and slash and file
        ):
            raise not_allowed(allowed)
        if value.startswith(("./", "../", "~/")):
            return str(placed(value, info))
        if not value:
            raise not_allowed(allowed)
        return value

    return Value(read, {"type": "string", "minLength": 1})


def folder_place() -> Value:
    """The path of a folder, which need not be there yet; relative ones start in the YAML's."""

    def read(value: object, info: ValidationInfo) -> Path:
        if isinstance(value, str) and value and value.isprintable() and value == value.strip():
            return placed(value, info)
        raise not_allowed("the path of a folder")

    return Value(read, {"type": "string", "minLength": 1})


def placed(path: str, info: ValidationInfo) -> Path:
    """Makes a path absolute: `~/` is the user's home, the rest starts in the YAML's folder."""
    around: object = info.context
    if not isinstance(around, Surroundings):  # a model built in Python, without a file
        around = Surroundings(Path.cwd())
    if path.startswith("~/"):
        return Path(around.environ.get("HOME", "~"), path[2:])
    return around.folder.joinpath(path).absolute()


def _split(address: str) -> SplitResult | None:
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises where the port is no number
    except ValueError:
        return None
    plain = address.isascii() and address.isprintable() and " " not in address
    return parts if plain and parts.scheme in {"http", "https"} and parts.hostname else None


def _reference(key: str, description: str) -> JsonSchemaValue:
    return {
        "type": "object",
        "properties": {key: {"type": "string", "minLength": 1, "description": description}},
        "required": [key],
        "additionalProperties": False,
    }


def _read_secret(value: object, info: ValidationInfo) -> Secret:
    if isinstance(value, str):
        return Secret(_usable(value, "the text"))
    around: object = info.context
    unread = isinstance(around, Surroundings) and not around.secrets
    match list(section_of(value).items()):
        case [("env" | "file", str(name))] if name and unread:
            return Secret(name, "unread")  # its name, for two of them may not be the same
        case [("env", str(name))] if name:
            variable = f"environment variable {name}"
            return Secret(_usable(_from_environment(name, info), variable), f"env {name}")
        case [("file", str(name))] if name:
            path = placed(name, info)
            return Secret(_usable(_only_line(path), f"file {path}"), f"file {path}", path)
        case _:
            # whatever stands there may be the secret itself, so it isn't told
            raise wrong("not a secret; {env: NAME}, {file: PATH} or a text is allowed")


def _from_environment(name: str, info: ValidationInfo) -> str:
    around: object = info.context
    environ = around.environ if isinstance(around, Surroundings) else os.environ
    if name not in environ:
        raise wrong(f"environment variable {name} isn't set")
    return environ[name]


def _only_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_SECRET_BYTES).decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise wrong(f"file {path} isn't text") from None  # the cause would quote its bytes
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise wrong(f"file {path} can't be read: {reason}") from error


def _usable(secret: str, what: str) -> str:
    if not secret:
        raise wrong(f"{what} is empty")
    # it goes into an HTTP header, where a line end would begin the next one
    if not (secret.isascii() and secret.isprintable()) or secret != secret.strip():
        raise wrong(f"{what} has blanks around it, line ends or characters outside ASCII")
    return secret
