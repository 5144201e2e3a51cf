"""Who may call: files of keys, signed tokens, and what is there for administrators."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo

from orchestrator.reading.quantities import Value, not_allowed, seconds
from orchestrator.reading.references import Secret, place_of_a_file, placed
from orchestrator.reading.sections import NonEmpty, Section

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]


def _place_of_keys() -> Value:
    def read(value: object, info: ValidationInfo) -> str:
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise not_allowed("the path of a file, or an address with http:// or https://")
        if value.startswith(("http://", "https://")):
            return value
        return str(placed(value, info))

    return Value(read, {"type": "string", "minLength": 1})


class Jwt(Section):
    """Callers who show signed tokens (JWT), as an OpenID provider issues them."""

    jwks: Annotated[str, _place_of_keys()]
    """The signers' public keys: a file or an address that ends in jwks.json or the like."""
    issuer: NonEmpty
    """What a token must have as iss."""
    audience: NonEmpty | None = None
    """What a token must have in aud; null admits only tokens without aud."""
    algorithms: Annotated[tuple[Algorithm, ...], Field(strict=False, min_length=1)] = ("RS256",)
    """How tokens may be signed."""
    caller_claim: NonEmpty = "sub"
    """Whose name the caller has, for budgets and the ledger."""
    routes_claim: NonEmpty | None = None
    """Which lists the models that may be asked for; null lets each caller ask for all."""
    priority: Literal["background", "normal", "high", "critical"] = "normal"
    """The highest priority, and that of requests that name none."""
    leeway: Annotated[float, seconds(0.0)] = 30.0
    """How far clocks may be apart."""
    max_concurrent: Annotated[int, Field(gt=0)] | None = None
    """Requests of one caller that may run at once; null is any number, as below."""
    requests_per_minute: Annotated[int, Field(gt=0)] | None = None
    """Requests of one caller in any minute."""
    tokens_per_minute: Annotated[int, Field(gt=0)] | None = None
    """Tokens of one caller in any minute, prompts and answers."""


class Callers(Section):
    """Who may call; without this section everybody on this machine."""

    keys: Annotated[Path, place_of_a_file()] | None = None
    """File of API keys, which `orchestrator keys` makes and changes; it need not be there yet."""
    jwt: Jwt | None = None
    """Signed tokens instead of keys, or besides them."""
    admin_key: Secret | None = None
    """Opens /metrics and /admin, as keys made with --admin do."""
    allow_anonymous: bool = False
    """Whether requests without a key are served, also to other machines."""
    anonymous_concurrent: Annotated[int, Field(gt=0)] | None = None
    """Requests without a key that may run at once, all together; null leaves it to the queues."""
