"""The `anthropic` runner: Anthropic's Messages API."""

import httpx

from orchestrator.request import PriorityRequest
from orchestrator.runners.base import SlotFactory
from orchestrator.runners.remote.anthropic_answer import REFUSALS, SHAPE, MessageDecoder
from orchestrator.runners.remote.anthropic_request import AnthropicSettings, own_headers, payload
from orchestrator.runners.remote.provider import Dialect, slots_of
from orchestrator.runners.remote.settings import address, headers_of
from orchestrator.runners.remote.upstream import Question

PATH = "/messages"


def factory(
    settings: AnthropicSettings, transport: httpx.AsyncBaseTransport | None = None
) -> SlotFactory:
    """Returns what makes the slots of one deployment; they share one pool of connections.

    Args:
        settings: Of the deployment.
        transport: In place of the usual one; closed with the factory.

    Raises:
        ConfigError: `base_url`, `headers` or `ca_file` can't be used.
    """
    url = address(settings.base_url, PATH)

    def ask(request: PriorityRequest, secret: str | None) -> Question:
        headers = headers_of(settings, own_headers(settings, secret))
        return Question(url, headers, payload(settings, request))

    def inspect(request: PriorityRequest) -> None:
        payload(settings, request)

    dialect = Dialect(
        settings=settings,
        host=url.host,
        ask=ask,
        read=lambda _, secret: MessageDecoder(settings.provider, secret=secret),
        refusals=REFUSALS,
        shape=SHAPE,
    )
    return slots_of(dialect, inspect, transport)
