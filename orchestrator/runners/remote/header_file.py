"""A header whose value stands in a file, which may be replaced while the gateway runs.

The file is looked at for every request, which costs a `stat`; it is read when it is another one or
was written. A value that can't be read or sent leaves the one before it in place.
"""

import logging
from pathlib import Path

from orchestrator.errors import OrchestratorError
from orchestrator.runners.remote.credentials import key_from, state_of, text_in

logger = logging.getLogger(__name__)


class HeaderFile:
    """Reads one header's value.

    Args:
        path: The file.
        value: What was read from it with the configuration.
    """

    __slots__ = ("_path", "_seen", "_value")

    def __init__(self, path: Path, value: str) -> None:
        self._path = path
        self._value = value
        self._seen: tuple[int, ...] | None = None
        """None until the first request, for the file may have changed since it was read."""

    def __repr__(self) -> str:
        return f"<HeaderFile {self._path}>"

    def __call__(self) -> str:
        """Returns the value to send now."""
        try:
            state = state_of(self._path)
        except OrchestratorError:  # gone for now: whoever replaces it isn't done yet
            return self._value
        if state != self._seen:
            self._seen = state  # one that can't be used isn't read again
            try:
                self._value = key_from(text_in(self._path), f"file {self._path}").secret
            except OrchestratorError as error:
                logger.warning("a header stays as it is: %s", error)
        return self._value
