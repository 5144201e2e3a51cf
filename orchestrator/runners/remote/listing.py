"""Which models a provider says it has: asked only to explain why one isn't found.

A list isn't the truth: aliases and wildcards are missing in many. So it makes advice, and no
verdict on a model that answers.
"""

import difflib
from collections.abc import Mapping

import httpx
import msgspec

from orchestrator.errors import UpstreamNotFoundError
from orchestrator.runners.classify import NOT_JSON
from orchestrator.runners.lease import Lease, StepLimits
from orchestrator.runners.remote.settings import RemoteSettings, address
from orchestrator.runners.remote.upstream import Body, send

SHOWN = 5
OF_A_BODY = ("content-length", "content-type", "transfer-encoding")


class _Entry(msgspec.Struct):
    id: str = ""
    name: str = ""


class _List(msgspec.Struct):
    """OpenAI's, Anthropic's and Mistral's `data`, Gemini's and Ollama's `models`."""

    data: list[_Entry] = []
    models: list[_Entry] = []


async def find(
    settings: RemoteSettings,
    path: str | None,
    headers: Mapping[str, str],
    transport: httpx.AsyncBaseTransport,
) -> str:
    """Looks for the deployment's model in its provider's list.

    Args:
        settings: Of the deployment.
        path: Where the list is, below the base URL; None if there is none.
        headers: Of a request, with its key.
        transport: Of the deployment.

    Returns:
        What was found, for people.

    Raises:
        UpstreamNotFoundError: There is a list, and the model isn't in it.
        OrchestratorError: The provider can't be asked.
    """
    model, provider = settings.model, settings.provider
    names = [] if path is None else await _names(settings, path, headers, transport)
    if not names:
        return f"{provider} has no list of its models at {settings.base_url}"
    if model in names or f"{model}:latest" in names:
        return f"{provider} lists {model}"
    close = difflib.get_close_matches(model, names, n=SHOWN)
    listed = ", ".join(close or sorted(names)[:SHOWN])
    meant = f"did you mean {listed}?" if close else f"it has {len(names)}, such as {listed}"
    raise UpstreamNotFoundError(f"{provider} doesn't list the model {model}; {meant}")


async def _names(
    settings: RemoteSettings,
    path: str,
    headers: Mapping[str, str],
    transport: httpx.AsyncBaseTransport,
) -> list[str]:
    """Returns the names that the provider lists; none if it has no list."""
    own = {name: value for name, value in headers.items() if name not in OF_A_BODY}
    own["accept"] = "application/json"
    asked = httpx.Request("GET", address(settings.base_url, path), headers=own)
    lease = Lease(StepLimits(), lambda _: None)
    try:
        response = await send(transport, asked, lease, provider=settings.provider, again=True)
        body = Body(response, settings.provider)
        try:
            content = await body.rest()
        finally:
            await body.aclose()
    finally:
        lease.disarm()
    try:
        found = msgspec.json.decode(content, type=_List)
    except NOT_JSON:
        return []
    names = [entry.id or entry.name for entry in (*found.data, *found.models)]
    return [name.removeprefix("models/") for name in names if name]
