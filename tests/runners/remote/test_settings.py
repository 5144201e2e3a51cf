"""Who we are to a provider: which header the key goes into, and our certificate."""

from pathlib import Path

import pytest

from orchestrator.config import parse
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.plan import plan_deployments
from orchestrator.runners.remote.anthropic_request import AnthropicSettings
from orchestrator.runners.remote.anthropic_request import own_headers as anthropic_headers
from orchestrator.runners.remote.gemini_request import GeminiSettings
from orchestrator.runners.remote.gemini_request import own_headers as gemini_headers
from orchestrator.runners.remote.openai_request import OpenAISettings
from orchestrator.runners.remote.openai_request import own_headers as openai_headers
from orchestrator.runners.remote.settings import RemoteSettings, ssl_context
from tests.fakes.keys import ANSWERED
from tests.fakes.sse_server import CERTIFICATE, SseServer
from tests.runners.remote.asking import asking


@pytest.mark.parametrize("bearer", [False, True])
def test_an_access_token_is_a_bearers_with_every_provider(bearer: bool):
    azure = OpenAISettings(base_url="http://x", model="m", azure=True, bearer=bearer)
    claude = AnthropicSettings(base_url="http://x", model="m", bearer=bearer)
    gemini = GeminiSettings(base_url="http://x", model="m", bearer=bearer)

    sent = [
        openai_headers(azure, "t"),
        anthropic_headers(claude, "t"),
        gemini_headers(gemini, "t"),
    ]

    own = ("api-key", "x-api-key", "x-goog-api-key")
    for headers, name in zip(sent, own, strict=True):
        assert headers.get("authorization") == ("Bearer t" if bearer else None)
        assert headers.get(name) == (None if bearer else "t")


@pytest.mark.live
async def test_our_certificate_is_shown_to_a_provider_that_wants_it():
    pem = str(CERTIFICATE)
    async with SseServer(ANSWERED, mutual=True) as server:
        async with asking(server, ca_file=pem) as asker:
            stranger = await asker.ask()
        async with asking(server, ca_file=pem, client_cert=(pem, None)) as asker:
            known = await asker.ask()

    assert stranger.error is not None
    assert known.text == "yes"


@pytest.mark.parametrize("verify", [True, False])
def test_a_certificate_that_is_none_is_told_with_its_file(tmp_path: Path, verify: bool):
    path = tmp_path / "cert.pem"
    path.write_text("no certificate", encoding="utf-8")
    settings = RemoteSettings(
        base_url="https://x", model="m", client_cert=(str(path), None), verify=verify
    )

    with pytest.raises(ConfigError, match=r"client_cert .*cert\.pem can't be used"):
        ssl_context(settings)


def test_a_key_that_stands_apart_from_its_certificate_is_configured_beside_it(tmp_path: Path):
    pem = CERTIFICATE.read_text(encoding="utf-8")
    begin = pem.index("-----BEGIN CERTIFICATE-----")
    end = pem.index("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----\n")
    (tmp_path / "cert.pem").write_text(pem[begin:end], encoding="utf-8")
    (tmp_path / "key.pem").write_text(pem[:begin] + pem[end:], encoding="utf-8")

    def planned(more: str) -> None:
        runner = f"kind: openai, base_url: https://x, model: m, client_cert: cert.pem{more}"
        plan_deployments(parse(f"deployments: {{d: {{runner: {{{runner}}}}}}}", folder=tmp_path))

    planned(", client_key: key.pem")
    with pytest.raises(OrchestratorError, match="can't be used"):
        planned("")
    with pytest.raises(OrchestratorError, match="client_key is of no use"):
        parse(
            "deployments: {d: {runner: {kind: openai, model: m, client_key: key.pem}}}",
            folder=tmp_path,
        )
