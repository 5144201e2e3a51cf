"""Access tokens from an OAuth 2.0 token endpoint (RFC 6749).

Two grants: the client's own credentials (4.4) and an assertion that somebody signed (RFC 7523), as
Google's service accounts do. A refusal is told by the endpoint's own code, never with what was
sent.
"""

import base64
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote_plus, urlencode

import httpx
import msgspec

from orchestrator.errors import UpstreamAuthenticationError, UpstreamConnectError, describe
from orchestrator.runners.classify import NOT_JSON, shorten
from orchestrator.runners.remote.coding import reads_of
from orchestrator.runners.remote.credentials import MAX_KEY_BYTES, Key, KeySource, key_from
from orchestrator.runners.remote.proxy import Proxy
from orchestrator.runners.remote.settings import trusted
from orchestrator.runners.remote.transport import Http1Transport

GRANTED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEndpoint:
    """Where tokens are given out."""

    url: str
    ca_file: str | None = None
    """PEM file of the authorities to trust instead of the usual ones."""
    proxy: Proxy | None = None
    """What stands between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """A client that acts for itself (RFC 6749, 4.4)."""

    client_id: str
    client_secret: Callable[[], str] = field(repr=False)
    scope: str | None = None
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further members of the form, such as `audience`."""
    auth: Literal["basic", "post"] = "basic"
    """Where id and secret go: into the header of RFC 6749, 2.3.1, or into the form."""


class _Token(msgspec.Struct):
    access_token: str
    expires_in: float | str | None = None
    """Seconds; some endpoints write a number as a text."""


class _Refusal(msgspec.Struct):
    error: str = ""
    error_description: str = ""


def client_credentials_source(endpoint: TokenEndpoint, client: ClientCredentials) -> KeySource:
    """Tokens for a client's id and secret.

    Raises:
        ConfigError: `ca_file` can't be used.
    """
    what = f"token endpoint {endpoint.url}"
    context = trusted(endpoint.url, endpoint.ca_file)

    async def fetch() -> Key:
        form = {"grant_type": "client_credentials", **client.params}
        if client.scope is not None:
            form["scope"] = client.scope
        secret = client.client_secret()
        headers: dict[str, str] = {}
        if client.auth == "post":
            form |= {"client_id": client.client_id, "client_secret": secret}
        else:  # both are form-encoded before they are joined (RFC 6749, 2.3.1)
            pair = f"{quote_plus(client.client_id)}:{quote_plus(secret)}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return await exchange(
            endpoint.url,
            form,
            what,
            secret=secret,
            headers=headers,
            context=context,
            proxy=endpoint.proxy,
        )

    return KeySource(name=what, fetch=fetch, token=True)


async def exchange(
    url: str,
    form: Mapping[str, str],
    what: str,
    *,
    secret: str,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
    proxy: Proxy | None = None,
) -> Key:
    """Asks a token endpoint.

    Args:
        url: Where.
        form: The grant.
        what: Its name for people.
        secret: What was sent, masked where the endpoint repeats it.
        headers: Sent besides.
        context: Whom to trust.
        proxy: What stands between.

    Raises:
        UpstreamConnectError: It can't be reached, or breaks off.
        UpstreamAuthenticationError: It gives no token.
    """
    # a connection of its own each time: an hour later it would be closed anyhow
    transport = Http1Transport(context, proxy=proxy)
    try:
        status, body = await _post(transport, url, form, headers or {})
    except httpx.RequestError as error:
        raise UpstreamConnectError(f"{what} can't be reached ({describe(error)})") from error
    finally:
        await transport.aclose()
    return _read(what, status, body, secret)


async def _post(
    transport: Http1Transport, url: str, form: Mapping[str, str], headers: Mapping[str, str]
) -> tuple[int, bytes]:
    request = httpx.Request(
        "POST",
        url,
        headers={
            "accept": "application/json",
            "accept-encoding": "identity",
            "content-type": "application/x-www-form-urlencoded",
            "user-agent": "orchestrator",
            **headers,
        },
        content=urlencode(form).encode(),
    )
    response = await transport.handle_async_request(request)
    body = bytearray()
    try:
        async for read in reads_of(response):
            body += read
            if len(body) > MAX_KEY_BYTES:
                break
    finally:
        await response.aclose()
    return response.status_code, bytes(body)


def _read(what: str, status: int, body: bytes, secret: str) -> Key:
    if status != GRANTED:
        raise UpstreamAuthenticationError(
            f"{what} gave no token: {_why(status, body, secret)}", upstream_status=status
        )
    try:
        token = msgspec.json.decode(body, type=_Token)
        lifetime = None if token.expires_in is None else float(token.expires_in)
    except (*NOT_JSON, ValueError):
        # not chained: the cause may quote the token
        raise UpstreamAuthenticationError(f"{what} sent an answer without a token") from None
    if lifetime is not None and not 0 < lifetime < float("inf"):
        raise UpstreamAuthenticationError(f"{what} sent a token that has expired already")
    return key_from(token.access_token, what, lifetime=lifetime)


def _why(status: int, body: bytes, secret: str) -> str:
    try:
        refusal = msgspec.json.decode(body, type=_Refusal)
    except NOT_JSON:
        return f"HTTP {status}"
    told = ": ".join(filter(None, (refusal.error, refusal.error_description)))
    return f"HTTP {status} {shorten(told, secret)}" if told else f"HTTP {status}"
