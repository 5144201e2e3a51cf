"""What `check --connect` finds out, against providers that are scripted byte by byte."""

import asyncio
from pathlib import Path

import pytest

from orchestrator.config import parse
from orchestrator.connect import STEPS, Finding, connect
from orchestrator.errors import WorkerStartError
from orchestrator.plan import DeploymentPlan, plan_deployments
from tests.fakes.keys import ANSWERED, REFUSED, oauth2, token
from tests.fakes.scripted import DONE, Stage, always
from tests.fakes.sse_server import Close, Script, Send, SseServer, Stall, head, refusal

pytestmark = pytest.mark.live

NO_MODEL = refusal(404, {"error": {"message": "no such model", "code": "model_not_found"}})


def marks(finding: Finding) -> str:
    """The steps as letters: passed, failed, not known."""
    return "".join({True: "p", False: "F", None: "-"}[finding.steps[step]] for step in STEPS)


async def found(
    *runners: str, limit: float = 5.0, more: str = "", folder: Path | None = None
) -> list[Finding]:
    yaml = "deployments:\n" + "".join(
        f"  d{number}:\n    runner: {runner}\n    {more}\n" for number, runner in enumerate(runners)
    )
    plans, _ = plan_deployments(parse(yaml, folder=folder, environ={}))
    async with asyncio.timeout(5):
        return await connect(plans, limit=limit)


def runner(server: SseServer, kind: str = "openai", model: str = "m", api_key: str = "hush") -> str:
    return f'{{kind: {kind}, base_url: "{server.url}", model: {model}, api_key: {api_key}}}'


async def found_of(*scripts: Script, limit: float = 5.0, more: str = "", **of: str) -> Finding:
    async with SseServer(*scripts) as server:
        (finding,) = await found(runner(server, **of), limit=limit, more=more)
    return finding


async def test_a_deployment_that_answers_passes_every_step_with_its_first_token_time():
    finding = await found_of(ANSWERED)

    assert finding.ok
    assert marks(finding) == "pppp"
    assert finding.first_token is not None
    assert 0 < finding.first_token < 5
    assert finding.failed is finding.advice is None


async def test_a_few_tokens_are_asked_for_and_no_more():
    async with SseServer(ANSWERED) as server:
        await found(runner(server))

        (request,) = server.requests
        assert request.json["max_tokens"] == 16
        assert request.json["stream"] is True


@pytest.mark.parametrize(
    ("script", "failed", "passed", "advice"),
    [
        (REFUSED, "key", "pF--", "check api_key"),
        (refusal(403, {}), "key", "pF--", "allow this key the model"),
        (refusal(429, {"error": {"code": "insufficient_quota"}}), "first token", "pp-F", "top up"),
        (refusal(429, {}), "first token", "pp-F", "wait, or raise"),
        (refusal(400, {}), "first token", "pp-F", "check kind, extra_body"),
        (refusal(500, {}), "first token", "p--F", "ask the provider"),
        ([Close()], "first token", "p--F", "check base_url and kind"),
        ([Send(head()), Close()], "first token", "p--F", "check base_url and kind"),
        (
            [
                Send(head(content_type="text/html", framing="connection: close") + b"<html>"),
                Close(),
            ],
            "first token",
            "p--F",
            "check base_url and kind",
        ),
    ],
)
async def test_what_a_provider_refuses_tells_the_step_and_what_to_do(
    script: Script, failed: str, passed: str, advice: str
):
    finding = await found_of(script)

    assert finding.failed == failed
    assert marks(finding) == passed
    assert advice in (finding.advice or "")
    assert finding.error is not None
    assert "hush" not in finding.error.message


@pytest.mark.parametrize(
    ("kind", "path", "listed"),
    [
        ("openai", "/v1/models", {"data": [{"id": "gpt-big"}, {"id": "other"}]}),
        ("anthropic", "/v1/models", {"data": [{"type": "model", "id": "gpt-big"}]}),
        ("gemini", "/v1/models", {"models": [{"name": "models/gpt-big"}]}),
        ("ollama", "/v1/api/tags", {"models": [{"name": "gpt-big", "model": "gpt-big"}]}),
    ],
)
async def test_a_model_that_is_not_found_is_looked_for_in_the_list(
    kind: str, path: str, listed: object
):
    async with SseServer(NO_MODEL, refusal(200, listed)) as server:
        (finding,) = await found(runner(server, kind=kind, model="gpt-bgi"))

        asked = server.requests[1]
        assert asked.line == f"GET {path} HTTP/1.1"
        assert "content-length" not in asked.headers
        assert any("hush" in value for value in asked.headers.values())
    assert finding.error is not None
    assert (finding.failed, marks(finding)) == ("model", "p-F-")
    assert "did you mean gpt-big?" in finding.error.message


@pytest.mark.parametrize(
    ("listing", "told"),
    [
        (refusal(200, {"data": [{"id": "zebra"}, {"id": "yak"}]}), "it has 2, such as yak, zebra"),
        (refusal(200, {"data": [{"id": "m"}]}), "no such model"),
        (refusal(200, {}), "no such model"),
        (refusal(200, "no list"), "no such model"),
        (refusal(404, {}), "no such model"),
        ([Close()], "no such model"),
    ],
)
async def test_a_list_adds_to_the_providers_own_words_what_it_can(listing: Script, told: str):
    finding = await found_of(NO_MODEL, listing)

    assert finding.error is not None
    assert told in finding.error.message


async def test_a_provider_that_is_not_there_is_not_reachable():
    (finding,) = await found("{kind: openai, base_url: 'http://127.0.0.1:9/v1', model: m}")

    assert (finding.failed, marks(finding)) == ("reachable", "F---")
    assert finding.first_token is None


async def test_a_provider_that_says_nothing_costs_its_limit_and_holds_nobody_up():
    loop = asyncio.get_running_loop()
    async with SseServer([Stall()]) as silent, SseServer(ANSWERED) as good:
        began_at = loop.time()
        first, second = await found(runner(silent), runner(good), limit=0.2)

        assert loop.time() - began_at < 2
        await silent.ended()
    assert (first.failed, marks(first)) == ("first token", "p--F")
    assert first.error is not None
    assert "0.2 s" in first.error.message
    assert second.ok


async def test_the_deployments_own_timeouts_count_as_well():
    more = "timeouts: {first_token: 100ms}"
    async with SseServer([Stall()]) as silent:
        (finding,) = await found(runner(silent), more=more)

    assert finding.failed == "first token"
    assert finding.error is not None
    assert "0.1 s" in finding.error.message


async def test_a_provider_that_never_shakes_hands_is_not_reachable():
    async with SseServer(ANSWERED) as plain:
        address = plain.url.replace("http:", "https:")
        own, total = await found(
            f"{{kind: openai, base_url: '{address}', model: m}}",
            f"{{kind: openai, base_url: '{address}', model: m}}\n    timeouts: {{connect: 300ms}}",
            limit=0.5,
        )

    assert [marks(finding) for finding in (own, total)] == ["F---", "F---"]
    assert own.error is not None
    assert "no connection stood within 0.5 s" in own.error.message
    assert total.error is not None
    assert "no connection stood within 0.3 s" in total.error.message


async def test_a_key_is_fetched_before_it_is_tried():
    async with SseServer(ANSWERED) as server, SseServer(token("t")) as endpoint:
        (finding,) = await found(runner(server, api_key=oauth2(endpoint)))

        assert finding.ok
        assert server.requests[0].headers["authorization"] == "Bearer t"


async def test_a_key_that_can_not_be_fetched_fails_the_step_of_the_key():
    async with SseServer(ANSWERED) as server:
        api_key = "{oauth2: {token_url: 'http://127.0.0.1:9/t', client_id: a, client_secret: s}}"
        refused, hung = await found(
            runner(server, api_key=api_key),
            runner(server, api_key="{command: [sleep, '60']}"),
            limit=0.5,
        )

        assert server.requests == []
    assert (refused.failed, marks(refused)) == ("key", "-F--")
    assert (hung.failed, marks(hung)) == ("key", "-F--")


async def test_a_local_model_is_looked_for_and_not_loaded(tmp_path: Path):
    (tmp_path / "model.gguf").write_bytes(b"no model at all")

    (finding,) = await found("{kind: torch, model: ./model.gguf}", folder=tmp_path)

    assert finding.ok
    assert finding.local
    assert marks(finding) == "--p-"


async def test_a_local_model_that_has_gone_fails_the_step_of_the_model(tmp_path: Path):
    (finding,) = await found("{kind: torch, model: ./model.gguf}", folder=tmp_path)

    assert (finding.failed, marks(finding)) == ("model", "--F-")
    assert finding.error is not None
    assert "there is no such file" in finding.error.message


async def found_loaded(stage: Stage, limit: float = 5.0) -> Finding:
    plan = DeploymentPlan(name="d", factory=stage.factory(), start_timeout=0.1)
    async with asyncio.timeout(5):
        (finding,) = await connect([plan], limit=limit, load=True)
    assert stage.closed == 1
    return finding


async def test_a_local_model_that_is_to_be_loaded_is_asked_for_a_token():
    finding = await found_loaded(always("a", DONE, local=True))

    assert finding.ok
    assert marks(finding) == "--pp"
    assert finding.first_token is not None


async def test_a_local_model_that_does_not_load_fails_the_step_of_the_first_token():
    broken = always(local=True)
    broken.start_error = lambda _: WorkerStartError("out of memory")
    slow = always(local=True)
    slow.start_gate = asyncio.Event()

    failed, late = await found_loaded(broken), await found_loaded(slow, limit=0.1)

    assert [marks(finding) for finding in (failed, late)] == ["--pF", "--pF"]
    assert failed.error is not None
    assert failed.error.message == "out of memory"
    assert late.error is not None
    assert "not loaded within 0.2 s" in late.error.message
