"""The `anthropic` runner: Anthropic's Messages API."""

from functools import partial

import httpx

from orchestrator.runners.base import SlotFactory
from orchestrator.runners.remote.anthropic_answer import REFUSALS, MessageDecoder
from orchestrator.runners.remote.anthropic_request import AnthropicSettings, own_headers, payload
from orchestrator.runners.remote.asking import Asking
from orchestrator.runners.remote.provider import Dialect, slots_of
from orchestrator.runners.remote.settings import address

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
    ask = Asking(settings, url, partial(own_headers, settings), partial(payload, settings))
    dialect = Dialect(
        settings=settings,
        host=url.host,
        ask=ask,
        read=lambda _, secret: MessageDecoder(settings.provider, secret=secret),
        refusals=REFUSALS,
    )
    return slots_of(dialect, ask.inspect, transport)
