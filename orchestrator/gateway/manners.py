"""What is looked at in a request's headers before anything else of it is.

Rules:
    1. A header that decides something stands there once: of two, whoever is in front of the gateway
       may have looked at the other one.
    2. Where nobody is asked for a key, any web page that is open on this machine could ask, with
       the money of whoever has opened it. Browsers say whose page it is (WHATWG Fetch, "Origin
       header"), and pages from elsewhere are refused, also if their name leads to this machine.
    3. Bodies are taken as they are, not compressed.
"""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from orchestrator.errors import InvalidRequestError, PermissionDeniedError

ORIGIN = b"origin"
CONTENT_ENCODING = b"content-encoding"
SINGLE = frozenset(
    (
        b"host",
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"content-type",
        b"idempotency-key",
        b"last-event-id",
        b"x-request-timeout",
    )
)


def check_single(names: Iterable[bytes]) -> None:
    """Looks for a header that stands there twice.

    Args:
        names: Of all headers, each as often as it was sent.

    Raises:
        InvalidRequestError: There is one that must not.
    """
    seen: set[bytes] = set()
    for name in names:
        if name in seen and name in SINGLE:
            text = name.decode()
            raise InvalidRequestError(f"the header {text} was sent twice", param=text)
        seen.add(name)


def check_coding(coding: bytes) -> None:
    """Looks at how a body is coded.

    Raises:
        InvalidRequestError: It is compressed.
    """
    if coding.strip().lower() not in {b"", b"identity"}:
        raise InvalidRequestError(
            "the header content-encoding: bodies are taken uncompressed", param="content-encoding"
        )


def check_origin(origin: bytes) -> None:
    """Looks from where the web page comes that asks.

    Raises:
        PermissionDeniedError: It isn't this machine's.
    """
    try:
        host = urlsplit(origin.decode("latin-1")).hostname or ""
        local = host == "localhost" or host.endswith(".localhost") or _is_loopback(host)
    except ValueError:
        local = False
    if not local:
        raise PermissionDeniedError(
            "web pages from elsewhere may not ask here without a key", param="origin"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
