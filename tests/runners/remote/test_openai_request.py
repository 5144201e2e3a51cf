from typing import Any

import pytest

from orchestrator.errors import ConfigError, InvalidRequestError, UpstreamAuthenticationError
from orchestrator.request import Message, SamplingParams
from orchestrator.runners.remote.openai import factory
from orchestrator.runners.remote.openai_request import OpenAISettings, endpoint, payload
from orchestrator.runners.remote.pace import at_once
from tests.fakes.sse_server import SseServer, answer, delta
from tests.runners.remote.asking import a_request, asking

pytestmark = pytest.mark.live

DONE = b"data: [DONE]\n\n"
HELLO = (delta("Hel"), delta("lo"), delta(finish="stop"))


async def test_the_body_says_what_was_asked_and_nothing_that_was_not():
    async with (
        SseServer(answer(*HELLO, DONE)) as server,
        asking(
            server.url + "/",
            api_key=lambda: "k-1",
            organization="org",
            project="proj",
            headers={"X-Team": "infra"},
            extra_body={"top_k": 5, "user": "deployment"},
        ) as asker,
    ):
        await asker.ask(
            messages=[Message("system", "be brief", {"name": "boss"}), Message("user", "hi")],
            sampling=SamplingParams(temperature=0.5, max_tokens=7, stop=("\n",)),
            extra={
                "user": "caller",
                "tools": [{"type": "function"}],
                "stream_options": {"include_obfuscation": False},
            },
        )

        asked = server.requests[0]
        assert asked.line == "POST /v1/chat/completions HTTP/1.1"
        assert asked.headers["authorization"] == "Bearer k-1"
        assert asked.headers["openai-organization"] == "org"
        assert asked.headers["openai-project"] == "proj"
        assert asked.headers["x-team"] == "infra"
        assert asked.json == {
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True, "include_obfuscation": False},
            "messages": [
                {"role": "system", "content": "be brief", "name": "boss"},
                {"role": "user", "content": "hi"},
            ],
            "temperature": 0.5,
            "max_tokens": 7,
            "stop": ["\n"],
            "top_k": 5,
            "user": "caller",
            "tools": [{"type": "function"}],
        }


async def test_a_key_that_changes_is_the_new_one_from_the_next_request_on():
    keys = iter(["old", "new"])
    async with (
        SseServer(answer(*HELLO, DONE)) as server,
        asking(server, api_key=lambda: next(keys)) as asker,
    ):
        await asker.ask()
        await asker.ask()

        sent = [request.headers["authorization"] for request in server.requests]
        assert sent == ["Bearer old", "Bearer new"]


async def test_no_setting_that_is_a_secret_shows_in_a_repr():
    settings = OpenAISettings(
        base_url="http://x", model="m", api_key=lambda: "hush", headers={"authorization": "hush"}
    )

    assert "hush" not in repr(settings)
    assert "api_key" not in repr(settings)


@pytest.mark.parametrize(
    ("base_url", "asked"),
    [
        ("http://a.test", "http://a.test/chat/completions"),
        ("http://a.test/v1", "http://a.test/v1/chat/completions"),
        ("http://a.test/v1/", "http://a.test/v1/chat/completions"),
        ("http://a.test/v1/chat/completions", "http://a.test/v1/chat/completions"),
        ("https://a.test/d/x?api-version=1", "https://a.test/d/x/chat/completions?api-version=1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1/chat/completions"),
    ],
)
def test_every_way_to_write_a_base_url_leads_to_the_same_endpoint(base_url: str, asked: str):
    assert str(endpoint(OpenAISettings(base_url=base_url, model="m"))) == asked


@pytest.mark.parametrize("base_url", ["", "a.test/v1", "ftp://a.test", "http://", "http://a:port"])
def test_a_base_url_that_leads_nowhere_is_a_fault_of_the_config(base_url: str):
    with pytest.raises(ConfigError, match="base_url"):
        factory(OpenAISettings(base_url=base_url, model="m"))


@pytest.mark.parametrize("value", [object(), "\ud800", {1: {2: {object()}}}])
async def test_a_field_that_json_cannot_carry_is_the_callers_fault(value: object):
    async with asking("http://127.0.0.1:1/v1") as asker:
        found = await asker.ask(extra={"x": value})

    assert isinstance(found.error, InvalidRequestError)


async def test_a_key_read_with_its_line_end_is_sent_without_it():
    async with (
        SseServer(answer(*HELLO, DONE)) as server,
        asking(server, api_key=lambda: "k-1\n") as asker,
    ):
        await asker.ask()

        assert server.requests[0].headers["authorization"] == "Bearer k-1"


@pytest.mark.parametrize("key", ["k\n1", "schlüssel"])
async def test_a_key_that_no_header_can_carry_is_never_shown(key: str):
    async with asking("http://127.0.0.1:1/v1", api_key=lambda: key) as asker:
        found = await asker.ask()

    assert isinstance(found.error, UpstreamAuthenticationError)
    assert key not in str(found.error)


def test_a_header_that_cannot_be_sent_is_a_fault_of_the_config():
    with pytest.raises(ConfigError, match="x-team"):
        factory(OpenAISettings(base_url="http://a.test", model="m", headers={"x-team": "a\nb"}))


@pytest.mark.parametrize(
    ("base_url", "version", "asked"),
    [
        ("https://r.openai.azure.com", "2024-10-21",
         "https://r.openai.azure.com/openai/deployments/m/chat/completions?api-version=2024-10-21"),
        ("https://r.openai.azure.com/openai/", "2024-10-21",
         "https://r.openai.azure.com/openai/deployments/m/chat/completions?api-version=2024-10-21"),
        ("https://r.openai.azure.com", None,
         "https://r.openai.azure.com/openai/v1/chat/completions"),
    ],
)  # fmt: skip
def test_azure_is_asked_at_the_address_of_the_deployment(
    base_url: str, version: str | None, asked: str
):
    settings = OpenAISettings(base_url=base_url, model="m", azure=True, api_version=version)

    assert str(endpoint(settings)) == asked


async def test_azure_gets_its_key_in_a_header_of_its_own():
    async with (
        SseServer(answer(*HELLO, DONE)) as server,
        asking(
            server.url.removesuffix("/v1"), azure=True, api_version="v", api_key=lambda: "k-1"
        ) as asker,
    ):
        assert (await asker.ask()).text == "Hello"

        asked = server.requests[0]
        assert asked.line == "POST /openai/deployments/m/chat/completions?api-version=v HTTP/1.1"
        assert asked.headers["api-key"] == "k-1"
        assert "authorization" not in asked.headers


def body_of(settings: dict[str, Any], **request: Any) -> dict[str, object]:
    given: dict[str, Any] = {"base_url": "http://x.test", "model": "m", "provider": "acme"}
    return at_once(payload(OpenAISettings(**given | settings), a_request(**request)))


@pytest.mark.parametrize(
    ("model", "field", "name"),
    [
        ("gpt-4o", "auto", "max_tokens"),
        ("gpt-5-mini", "auto", "max_completion_tokens"),
        ("openai/o3", "auto", "max_completion_tokens"),
        ("o1-mini", "auto", "max_completion_tokens"),
        ("ft:gpt-5:acme", "auto", "max_completion_tokens"),
        ("foo1-large", "auto", "max_tokens"),
        ("my-azure-o3", "max_completion_tokens", "max_completion_tokens"),
        ("o3", "max_tokens", "max_tokens"),
    ],
)
def test_the_limit_of_an_answer_has_the_name_that_the_model_knows(
    model: str, field: str, name: str
):
    body = body_of(
        {"model": model, "max_tokens_field": field}, sampling=SamplingParams(max_tokens=7)
    )

    assert {key: value for key, value in body.items() if "max" in key} == {name: 7}


def test_everything_of_a_chat_completion_and_beyond_goes_through_untouched():
    extra: dict[str, Any] = {
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}},
        "logprobs": True,
        "top_logprobs": 2,
        "reasoning_effort": "low",
        "metadata": {"a": "b"},
        "user": "u",
        "vendor": {"deep": [1, None]},
    }
    image = {"type": "image_url", "image_url": {"url": "http://a.test/i.png", "detail": "low"}}
    sampling = SamplingParams(seed=0, presence_penalty=0.5, frequency_penalty=-0.5, top_p=0.5)

    body = body_of(
        {}, extra=extra, sampling=sampling, messages=[Message("user", [image], {"name": "n"})]
    )

    assert body.items() >= extra.items()
    assert body["messages"] == [{"role": "user", "content": [image], "name": "n"}]
    assert (body["seed"], body["presence_penalty"], body["frequency_penalty"]) == (0, 0.5, -0.5)


MISTRAL: dict[str, Any] = {
    "renamed": {"seed": "random_seed"}, "unsupported": ("logprobs",), "left_out": ("user",),
    "stream_options": False,
}  # fmt: skip


def test_a_provider_with_its_own_names_is_asked_by_them():
    body = body_of(
        MISTRAL,
        sampling=SamplingParams(seed=3),
        extra={"stream_options": {"include_usage": True}, "logprobs": None, "user": "u"},
    )

    assert body["random_seed"] == 3
    assert body.keys().isdisjoint({"seed", "stream_options", "logprobs", "user"})


@pytest.mark.parametrize(("extra", "param"), [({"n": 2}, "n"), ({"logprobs": True}, "logprobs")])
async def test_what_a_provider_can_not_do_is_refused_before_or_dropped(
    extra: dict[str, object], param: str
):
    async with (
        asking("http://127.0.0.1:1/v1", **MISTRAL) as asker,
        asking("http://127.0.0.1:1/v1", drop_params=True, **MISTRAL) as dropping,
    ):
        with pytest.raises(InvalidRequestError) as caught:
            asker.factory.inspect(a_request(extra=extra))
        assert dropping.factory.inspect(a_request(extra=extra)) is None

    assert caught.value.param == param
    assert param not in body_of({"drop_params": True, **MISTRAL}, extra=extra)
