"""What a deployment's requests have in common, made once.

Headers are the same for every request but for the length of the body and, now and then, a key.
httpx makes each of them anew for every request, which is a tenth of all the calls that a request
costs; a copy of what it has made before costs nearly nothing.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import httpx

from orchestrator.request import PriorityRequest
from orchestrator.runners.remote.pace import Steps, at_leisure, at_once
from orchestrator.runners.remote.settings import RemoteSettings, check_secret, headers_of
from orchestrator.runners.remote.transport import Pieces

OwnHeaders = Callable[[str | None], Mapping[str, str]]
"""Returns a kind's own headers, by lower-case name, with the key if there is one."""
Payload = Callable[[PriorityRequest], Steps[Mapping[str, object]]]
"""Makes the body to send, or raises an `InvalidRequestError`."""
SHORT_BYTES = 64 << 10
SHORT_MESSAGES = 256
"""What has neither more of them nor came in more bytes is translated in one step."""


class Asking:
    """Makes the requests of one deployment to one address.

    Args:
        settings: Of the deployment.
        url: Where to.
        own: The kind's own headers.
        payload: What is sent.
    """

    __slots__ = ("_headers", "_made_of", "_own", "_settings", "_url", "payload")

    def __init__(
        self, settings: RemoteSettings, url: httpx.URL, own: OwnHeaders, payload: Payload
    ) -> None:
        self._settings = settings
        self._url = url
        self._own = own
        self.payload = payload
        """Makes the body to send, not encoded yet."""
        self._headers = httpx.Headers()
        self._made_of: object = None
        """The key and the files' contents that the headers have in them."""

    def __repr__(self) -> str:
        return f"<Asking {self._url.host}>"

    def post(self, content: Sequence[bytes], secret: str | None) -> httpx.Request:
        """Returns the request to send, with its body in memory.

        Args:
            content: The body, encoded; in pieces if it is large.
            secret: The key, if there is one.

        Raises:
            UpstreamAuthenticationError: No header can carry the key.
        """
        asked = httpx.Request(
            "POST", self._url, headers=self.headers(secret), stream=Pieces(content)
        )
        asked.headers["content-length"] = str(sum(map(len, content)))
        return asked

    def inspect(self, request: PriorityRequest) -> Awaitable[None] | None:
        """Looks for what the provider can't do; what it returns has to be waited for.

        Raises:
            InvalidRequestError: There is something.
        """
        if is_short(request):
            at_once(self.payload(request))
            return None
        return self._inspect(request)

    async def translate(self, request: PriorityRequest) -> Mapping[str, object]:
        """Returns the body to send, not encoded yet; a long one was made with rests.

        Raises:
            InvalidRequestError: The provider can't do it.
        """
        steps = self.payload(request)
        return at_once(steps) if is_short(request) else await at_leisure(steps)

    async def _inspect(self, request: PriorityRequest) -> None:
        await at_leisure(self.payload(request))

    def headers(self, secret: str | None) -> httpx.Headers:
        """Returns the headers of a request, but for the length of its body; nobody may change them.

        Raises:
            UpstreamAuthenticationError: No header can carry the key.
        """
        files = self._settings.header_files
        made_of = (secret, [read() for read in files.values()] if files else None)
        if made_of != self._made_of:
            check_secret(self._settings, secret)
            self._headers = httpx.Headers(
                {
                    "host": self._url.netloc.decode(),
                    **headers_of(self._settings, self._own(secret)),
                }
            )
            self._made_of = made_of
        return self._headers


def is_short(request: PriorityRequest) -> bool:
    """Whether a request is translated in one step."""
    return len(request.messages) <= SHORT_MESSAGES and request.size_bytes <= SHORT_BYTES
