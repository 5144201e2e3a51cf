"""Access tokens for a Google service account, by an assertion that it signs (RFC 7523).

The account's key file is read whenever a token is wanted, so a file that was replaced counts. The
library reads the key and signs; the token is fetched as every other, without a thread.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from google.auth import crypt, jwt

from orchestrator.errors import UpstreamAuthenticationError
from orchestrator.runners.classify import NOT_JSON
from orchestrator.runners.remote.credentials import Key, KeySource
from orchestrator.runners.remote.proxy import Proxy
from orchestrator.runners.remote.settings import trusted
from orchestrator.runners.remote.token_endpoint import exchange

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
"""The scope that Vertex wants."""
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASSERTION_SECONDS = 3600
MAX_FILE_BYTES = 64 << 10


class _Account(msgspec.Struct):
    client_email: str
    private_key: str
    token_uri: str
    private_key_id: str | None = None

    def __repr__(self) -> str:
        return f"<service account {self.client_email}>"


Signer = object
# the library calls itself typed and has no types
_signer: Callable[[str, str | None], Signer] = vars(crypt)["RSASigner"].from_string
_encode: Callable[[Signer, Mapping[str, object]], bytes] = vars(jwt)["encode"]


def no_proxy(_url: str) -> Proxy | None:
    """The direct way to every address."""
    return None


def google_source(
    path: Path,
    scopes: Sequence[str] = (CLOUD_PLATFORM,),
    ca_file: str | None = None,
    proxy: Callable[[str], Proxy | None] = no_proxy,
) -> KeySource:
    """Tokens for the service account whose key file that is.

    Args:
        path: The JSON file as Google's console gives it out.
        scopes: What the token is good for.
        ca_file: PEM file of the authorities to trust instead of the usual ones.
        proxy: What stands on the way to an address, for the key file says where tokens are.

    Raises:
        ConfigError: `ca_file` can't be used.
    """
    what = f"service account {path}"
    context = trusted("https:", ca_file)

    async def fetch() -> Key:
        account = _account(path, what)
        assertion = _assertion(account, scopes, what)
        form = {"grant_type": GRANT, "assertion": assertion}
        return await exchange(
            account.token_uri,
            form,
            what,
            secret=assertion,
            context=context,
            proxy=proxy(account.token_uri),
        )

    return KeySource(name=what, fetch=fetch, token=True)


def _account(path: Path, what: str) -> _Account:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise UpstreamAuthenticationError(f"{what} can't be read: {error.strerror}") from error
    try:
        return msgspec.json.decode(content, type=_Account)
    except NOT_JSON:
        # not chained: the cause may quote the file
        raise UpstreamAuthenticationError(
            f"{what} isn't the JSON key of a service account: it needs client_email, private_key"
            " and token_uri"
        ) from None


def _assertion(account: _Account, scopes: Sequence[str], what: str) -> str:
    now = int(datetime.now(UTC).timestamp())  # noqa: TID251 - an assertion names wall clock times
    claims = {
        "iss": account.client_email,
        "scope": " ".join(scopes),
        "aud": account.token_uri,
        "iat": now,
        "exp": now + ASSERTION_SECONDS,
    }
    try:
        signed = _encode(_signer(account.private_key, account.private_key_id), claims)
    except ValueError:
        # not chained: the cause may quote the key
        raise UpstreamAuthenticationError(f"{what} has a private_key that is no RSA key") from None
    return signed.decode()
