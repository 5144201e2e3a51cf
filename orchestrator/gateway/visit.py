"""One HTTP request from its headers to its line in the access log; never its text."""

import asyncio
import logging
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.types import Scope

from orchestrator.events import Failed, Finished
from orchestrator.gateway.failure import Headers
from orchestrator.request import PriorityRequest

logger = logging.getLogger("orchestrator.access")

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
PROBES = ("/livez", "/readyz", "/metrics")
"""What machines ask every few seconds: its lines are of level DEBUG."""


@dataclass(slots=True, kw_only=True, eq=False)
class Visit:
    """What is known of a request before it is read, and what became of it."""

    method: str
    path: str
    request_id: str
    headers: dict[bytes, bytes]
    started_at: float
    """Loop time, seconds."""
    repeated: Sequence[bytes] = ()
    """The names of all headers, if one of them was sent twice."""
    status: int = 0
    """0 until a response is started."""
    request: PriorityRequest | None = None
    """Set as soon as it could be read."""
    explained: bool | None = None
    """Whether the response tells the attempts; None if its caller says so."""
    _response_headers: Headers = field(init=False)

    def __post_init__(self) -> None:
        """Makes the headers that every response carries."""
        self._response_headers = ((b"x-request-id", self.request_id.encode()),)

    def __repr__(self) -> str:
        return f"<Visit {self.request_id} {self.method} {self.path} {self.status or 'open'}>"

    @classmethod
    def of(cls, scope: Scope) -> "Visit":
        """Reads the headers; an id that the caller gave is kept if logs and headers can hold it."""
        sent: Sequence[tuple[bytes, bytes]] = scope["headers"]
        headers = dict(sent)
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        return cls(
            method=scope["method"],
            path=scope["path"],
            request_id=given if _ID.fullmatch(given) else f"req_{secrets.token_hex(12)}",
            headers=headers,
            started_at=asyncio.get_running_loop().time(),
            repeated=[name for name, _ in sent] if len(headers) != len(sent) else (),
        )

    @property
    def response_headers(self) -> Headers:
        """Headers of every response, errors included."""
        return self._response_headers

    def say(self, name: str, value: str) -> None:
        """Adds a header to the response, which isn't started yet."""
        self._response_headers = (*self._response_headers, (name.encode(), value.encode()))

    def header(self, name: str) -> str | None:
        """A header's value; None if it isn't there."""
        value = self.headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    def log(self) -> None:
        """Writes the line."""
        level = logging.DEBUG if self.path in PROBES else logging.INFO
        if not logger.isEnabledFor(level):
            return
        request = self.request
        ending = request.channel.ending if request else None
        usage = ending.usage if isinstance(ending, Finished) else None
        # made here, for logging would walk the stack to find out that it is always this line
        record = logger.makeRecord(
            logger.name,
            level,
            __file__,
            0,
            "%s %s %d route=%s id=%s ms=%.1f prompt=%s completion=%s attempts=%d%s",
            (
                self.method,
                # what a caller sent must not break the line
                self.path.encode("unicode_escape").decode(),
                self.status,
                request.model.encode("unicode_escape").decode()[:128] if request else "-",
                self.request_id,
                (asyncio.get_running_loop().time() - self.started_at) * 1000,
                usage.prompt_tokens if usage else "-",
                usage.completion_tokens if usage else "-",
                len(request.attempts) if request else 0,
                f" error={ending.error.code}" if isinstance(ending, Failed) else "",
            ),
            None,
            extra={"request_id": self.request_id, "status": self.status},
        )
        logger.handle(record)
