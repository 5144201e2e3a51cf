"""The `gemini` runner: Gemini at AI Studio, or at Vertex."""

from functools import partial

import httpx

from orchestrator.runners.base import SlotFactory
from orchestrator.runners.remote.asking import Asking
from orchestrator.runners.remote.gemini_answer import REFUSALS, GeminiDecoder
from orchestrator.runners.remote.gemini_request import (
    GeminiSettings,
    answers_to,
    endpoint,
    own_headers,
    payload,
)
from orchestrator.runners.remote.provider import Dialect, slots_of


def factory(
    settings: GeminiSettings, transport: httpx.AsyncBaseTransport | None = None
) -> SlotFactory:
    """Returns what makes the slots of one deployment; they share one pool of connections.

    Args:
        settings: Of the deployment.
        transport: In place of the usual one; closed with the factory.

    Raises:
        ConfigError: `base_url`, `headers` or `ca_file` can't be used.
    """
    url = endpoint(settings)
    ask = Asking(settings, url, partial(own_headers, settings), partial(payload, settings))
    dialect = Dialect(
        settings=settings,
        host=url.host,
        ask=ask,
        read=lambda request, secret: GeminiDecoder(
            settings.provider, secret=secret, answers=answers_to(request.sampling)
        ),
        refusals=REFUSALS,
        marks_end=False,
        models=None if settings.project else "/models",
    )
    return slots_of(dialect, ask.inspect, transport)
