"""The `openai` runner: any server that speaks Chat Completions over server-sent events."""

from dataclasses import replace
from functools import partial

import httpx

from orchestrator.request import PriorityRequest, Work
from orchestrator.runners.base import SlotFactory
from orchestrator.runners.remote.asking import Asking
from orchestrator.runners.remote.chat import ChatDecoder
from orchestrator.runners.remote.openai_request import (
    OpenAISettings,
    answers_to,
    check,
    endpoint,
    own_headers,
    payload,
)
from orchestrator.runners.remote.provider import Dialect, slots_of
from orchestrator.runners.remote.sse import SseDecoder
from orchestrator.runners.remote.works import other_works


def factory(
    settings: OpenAISettings, transport: httpx.AsyncBaseTransport | None = None
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
        read=lambda request, secret: ChatDecoder(
            settings.provider, secret=secret, answers=answers_to(settings, request)
        ),
        framing=partial(SseDecoder, error_field=True),
        models=None if settings.azure else "/models",  # Azure lists models, but not deployments
        others=other_works(settings),
    )

    def inspect(request: PriorityRequest) -> None:
        if request.work is Work.CHAT:
            check(settings, request)

    factory = slots_of(dialect, inspect, transport)
    return replace(factory, works=frozenset(settings.serves))
