"""Where a provider is and how it is to be asked: what all of them have in common.

What can't be sent is told here, before anything is: at the start where it is the configuration's
fault, else with the request.

Decided:
    * Proxies that the environment names are used only where the configuration says `proxy: env`: a
      request and its key go where that says, whatever shell the gateway was started from.
    * HTTP/1.1 alone: one answer has one connection, so a connection that breaks or is cut ends one
      answer, and a long one holds up nobody. HTTP/2 would save connections, of which a deployment
      has no more than slots.
    * Compressed answers aren't asked for, for a compressor holds tokens back, but they are read:
      gzip, deflate, br, zstd.
"""

import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import httpx
import msgspec

from orchestrator.errors import (
    ConfigError,
    InvalidRequestError,
    UpstreamAuthenticationError,
    describe,
)
from orchestrator.runners.lease import KeyAccess
from orchestrator.runners.remote.large_request import encode_large
from orchestrator.runners.remote.proxy import Proxy

NO_JSON = (TypeError, ValueError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings:
    """One deployment at a provider; each kind adds what is its own."""

    base_url: str
    """With or without a slash at its end; a query is kept."""
    model: str
    """The provider's own name of the model."""
    api_key: Callable[[], str] | None = field(default=None, repr=False)
    """Asked for every request, so that a key may change; None sends none."""
    renew: Callable[[str], Awaitable[None]] | None = field(default=None, repr=False)
    """Awaited with a key that was refused, or with none at all, until there is another."""
    bearer: bool = False
    """The key is an access token, which goes into no header of the provider's own."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Sent besides ours, and in place of ours of the same name."""
    header_files: Mapping[str, Callable[[], str]] = field(
        default_factory=dict[str, Callable[[], str]], repr=False
    )
    """Headers that are asked for with every request, so that they may change."""
    extra_body: Mapping[str, object] = field(default_factory=dict[str, object])
    """Members of every request's body; a request's own win."""
    drop_params: bool = False
    """Leaves out what the provider can't do, where it would be refused otherwise."""
    estimate_usage: bool = False
    """Counts tokens by the length of the texts where the provider tells no usage."""
    provider: str = "openai"
    """The name in errors and metrics."""
    proxy: Proxy | None = None
    """What stands between us and the provider."""
    ca_file: str | None = None
    """PEM file of the authorities to trust instead of the usual ones."""
    client_cert: tuple[str, str | None] | None = None
    """PEM files of our own certificate and, if it isn't in the same one, of its key."""
    verify: bool = True
    """False trusts whoever answers."""


def address(base_url: str, path: str) -> httpx.URL:
    """Returns the URL of a path below the base URL, whose query is kept.

    Args:
        base_url: May end with a slash or with the path already.
        path: Begins with a slash.

    Raises:
        ConfigError: That is no address of an HTTP server.
    """
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"base_url {base_url!r} is no URL: {describe(error)}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"base_url {base_url!r} must begin with http:// or https:// and a host")
    return url.copy_with(path=url.path.rstrip("/").removesuffix(path) + path)


def secret_of(settings: RemoteSettings, key: KeyAccess | None = None) -> str | None:
    """Returns the key to send now; None if the provider wants none.

    Args:
        settings: Of the deployment.
        key: The one of several keys that it is the turn of.
    """
    read = settings.api_key if key is None else key.read
    if read is None:
        return None
    return read().strip()  # a file with a key in it usually ends in a line feed


def check_secret(settings: RemoteSettings, secret: str | None) -> None:
    """Looks at a key before the first request that has it.

    Raises:
        UpstreamAuthenticationError: No header can carry it.
    """
    if secret is not None and not fits_header(secret):
        raise UpstreamAuthenticationError(
            f"the api_key of {settings.provider} has characters that no header can carry"
        )


def fits_header(text: str) -> bool:
    """Whether a header can carry the text: no line ends, no letters beyond ASCII."""
    return text.isascii() and text.isprintable()


def headers_of(settings: RemoteSettings, own: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers to send.

    Args:
        settings: Whose `headers` win over all others.
        own: The kind's own headers, by lower-case name.
    """
    headers = {
        "accept": "text/event-stream",
        "accept-encoding": "identity",  # a compressor would hold tokens back
        "content-type": "application/json",
        "user-agent": "orchestrator",
        **own,
    }
    headers.update((name.lower(), value) for name, value in settings.headers.items())
    if settings.header_files:
        headers.update((name.lower(), read()) for name, read in settings.header_files.items())
    return headers


def encode(body: Mapping[str, object]) -> bytes:
    """Returns the body's bytes.

    Raises:
        InvalidRequestError: A field that is passed on untouched is nothing that JSON can carry.
    """
    try:
        return msgspec.json.encode(body)
    except NO_JSON as error:
        unfit = _unfit(error)
        raise unfit from error


async def encode_in_pieces(body: Mapping[str, object]) -> list[bytes]:
    """Returns a large body's bytes, while others have their turns.

    Raises:
        InvalidRequestError: A field that is passed on untouched is nothing that JSON can carry.
    """
    try:
        return await encode_large(body)
    except NO_JSON as error:
        unfit = _unfit(error)
        raise unfit from error


def _unfit(error: Exception) -> InvalidRequestError:
    return InvalidRequestError(
        f"the request holds something that JSON can't carry ({describe(error)})"
    )


def check_headers(settings: RemoteSettings) -> None:
    """Looks at the deployment's own headers.

    Raises:
        ConfigError: One of them can't be sent.
    """
    for name, value in settings.headers.items():
        if not fits_header(name + value):
            raise ConfigError(f"header {name!r} has characters that no header can carry")


def ssl_context(settings: RemoteSettings) -> ssl.SSLContext | None:
    """Returns whom to trust, and who we are; None where only `http` is spoken.

    Raises:
        ConfigError: `ca_file` or `client_cert` can't be used.
    """
    if not settings.base_url.lower().startswith("https:"):
        return None
    if settings.verify:
        context = trusted(settings.base_url, settings.ca_file)
    else:
        context = httpx.create_ssl_context(verify=False)
    if settings.client_cert is not None and context is not None:
        certificate, key = settings.client_cert
        try:
            # without a password it would ask the terminal for one
            context.load_cert_chain(certificate, key, password="")
        except OSError as error:
            raise ConfigError(
                f"client_cert {certificate} can't be used: {describe(error)}"
            ) from error
    return context


def trusted(url: str, ca_file: str | None) -> ssl.SSLContext | None:
    """Returns whom to trust at that address; None where only `http` is spoken.

    Raises:
        ConfigError: `ca_file` can't be used.
    """
    if not url.lower().startswith("https:"):
        return None
    try:
        return ssl.create_default_context(cafile=ca_file) if ca_file else httpx.create_ssl_context()
    except OSError as error:
        raise ConfigError(f"ca_file {ca_file} can't be used: {describe(error)}") from error


def leave_out(settings: RemoteSettings, param: str, what: str) -> None:
    """Allows that a field isn't sent, if the deployment says so.

    Args:
        settings: Of the deployment.
        param: The field's path in the request.
        what: What the provider can't do, to be read after its name.

    Raises:
        InvalidRequestError: The deployment doesn't say `drop_params`.
    """
    if not settings.drop_params:
        raise InvalidRequestError(f"{settings.provider} {what}", param=param)
