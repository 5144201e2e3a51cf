"""Keys that change: token endpoints on loopback, and a whole system over a scripted provider."""

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

from orchestrator.config import parse
from orchestrator.deployment import RunningDeployment
from orchestrator.sdk import Orchestrator
from tests.fakes.sse_server import Script, SseServer, answer, delta, refusal

DONE = b"data: [DONE]\n\n"
REFUSED = refusal(401, {"error": {"message": "Incorrect API key", "code": "invalid_api_key"}})
ANSWERED = answer(delta("yes"), delta(finish="stop"), DONE)


def token(text: str, expires_in: object = 3600) -> Script:
    """A token endpoint's answer; without an end if `expires_in` is None."""
    given = {"access_token": text, "token_type": "Bearer"}
    return refusal(200, given if expires_in is None else given | {"expires_in": expires_in})


def oauth2(endpoint: SseServer, **members: str) -> str:
    """An `api_key` that is a token of that endpoint."""
    more = "".join(f", {name}: {value}" for name, value in members.items())
    return f"{{oauth2: {{token_url: '{endpoint.url}', client_id: me, client_secret: hush{more}}}}}"


@contextlib.asynccontextmanager
async def serving(
    provider: SseServer, api_key: str, *, kind: str = "openai", folder: Path | None = None
) -> AsyncGenerator[tuple[Orchestrator, RunningDeployment]]:
    """One deployment, `d`, with that key, and what runs it."""
    yaml = f"""
deployments:
  d:
    runner: {{kind: {kind}, base_url: "{provider.url}", model: m, api_key: {api_key}}}
    slots: 16
    retry: {{max_attempts: 1}}
"""
    async with Orchestrator(parse(yaml, folder=folder)) as orchestrator:
        yield orchestrator, orchestrator.system.deployments["d"]
