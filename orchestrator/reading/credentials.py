"""Keys that are fetched while the gateway runs, instead of read once with the file.

Each section has one key that says where from; what such a key is for stands in `Remote.api_key`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Discriminator as ChosenBy
from pydantic import Field, Tag, ValidationInfo, field_validator, model_validator

from orchestrator.reading.quantities import text, wrong
from orchestrator.reading.references import Secret, existing_file, placed
from orchestrator.reading.sections import Duration, Limits, NonEmpty, Section
from orchestrator.reading.text import section_of

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"


class OAuth2(Section):
    """Access tokens for a client's own credentials (RFC 6749, 4.4)."""

    token_url: Annotated[
        str,
        text(
            r"^https?://[^/?#@\s]+/[!-~]*$",
            "an address such as https://login.example.com/oauth/token",
        ),
    ]
    """The token endpoint."""
    client_id: NonEmpty
    """The client's name there."""
    client_secret: Secret
    """{env: NAME} or {file: PATH}; a file is read again when it has changed."""
    scope: NonEmpty | None = None
    """What the token is good for; several are separated by blanks."""
    auth: Literal["basic", "post"] = "basic"
    """Where id and secret are sent: basic, in a header, or post, in the form."""
    params: Annotated[
        Mapping[NonEmpty, str], Field(json_schema_extra={"additionalProperties": False})
    ] = Field(default={})
    """Further members of the form that the endpoint knows, such as audience."""
    ca_file: Annotated[Path, existing_file()] | None = None
    """PEM file of the certificate authorities to trust there instead of the usual ones."""


class Google(Section):
    """Access tokens for a Google service account."""

    file: Annotated[Path, existing_file()]
    """The account's JSON key file; it is read again for every token."""
    scopes: Annotated[tuple[NonEmpty, ...], Field(strict=False, min_length=1)] = (CLOUD_PLATFORM,)
    """What the token is good for."""
    ca_file: Annotated[Path, existing_file()] | None = None
    """PEM file of the certificate authorities to trust at Google instead of the usual ones."""


class Fetched(Section):
    """A key that is fetched: by a command, or as a token."""

    command: Annotated[tuple[NonEmpty, ...], Field(strict=False, min_length=1)] | None = None
    """Program and arguments; what it prints is the key. It is run without a shell."""
    ttl: Duration = 600.0
    """How long a key that a command printed is good for."""
    oauth2: OAuth2 | None = None
    """A client at an OAuth 2.0 token endpoint."""
    google: Google | None = None
    """A Google service account."""

    @property
    def way(self) -> tuple[str, ...] | OAuth2 | Google:
        """The one that was given: a command, or where tokens come from."""
        ways = (self.command, self.oauth2, self.google)
        return next(way for way in ways if way is not None)

    @field_validator("command", mode="after")
    @classmethod
    def _place(cls, value: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        if value and value[0].startswith(("./", "../", "~/")):
            return str(placed(value[0], info)), *value[1:]
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.command, self.oauth2, self.google).count(None) != 2:  # noqa: PLR2004 - of three
            raise wrong("one of command, oauth2 and google is needed, and no more")
        if "ttl" in self.model_fields_set and self.command is None:
            raise wrong("ttl is for a command; a token says itself how long it is good for")
        return self


def _form(value: object) -> str:
    # a section with a key that nobody knows may hold the secret itself, so `Secret` refuses it
    return "(fetched)" if set(section_of(value)) & set(Fetched.model_fields) else "(secret)"


ApiKey = Annotated[
    Annotated[Secret, Tag("(secret)")] | Annotated[Fetched, Tag("(fetched)")], ChosenBy(_form)
]
"""A text, where it stands, or how it is fetched; pydantic's names of the forms are in brackets."""


class KeyWithLimits(Section):
    """One of several keys, with limits of its own."""

    api_key: ApiKey
    """As the runner's api_key."""
    limits: Limits | None = None
    """In place of the deployment's; null takes those."""


def _form_of_several(value: object) -> str:
    return "(limited)" if set(section_of(value)) & set(KeyWithLimits.model_fields) else _form(value)


OneOfSeveral = Annotated[
    Annotated[KeyWithLimits, Tag("(limited)")]
    | Annotated[Secret, Tag("(secret)")]
    | Annotated[Fetched, Tag("(fetched)")],
    ChosenBy(_form_of_several),
]
"""A key as above, or one with limits of its own."""
