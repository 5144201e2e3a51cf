from typing import Any

import pytest

from orchestrator import metrics
from orchestrator.config import parse
from orchestrator.errors import InvalidRequestError
from orchestrator.plan import plan_deployments
from orchestrator.reading.presets import PRESETS
from orchestrator.request import SamplingParams
from orchestrator.runners.base import SlotFactory
from tests.fakes.sse_server import SseServer, answer, delta
from tests.runners.remote.asking import Asker, a_request

DONE = b"data: [DONE]\n\n"


def factory_of(runner: str, **environ: str) -> SlotFactory:
    plans, _ = plan_deployments(parse(f"deployments: {{d: {{runner: {runner}}}}}", environ=environ))
    return plans[0].factory


@pytest.mark.parametrize("kind", sorted(PRESETS))
async def test_every_kind_of_provider_makes_slots_of_its_own(kind: str):
    place = ", base_url: 'http://127.0.0.1:1'" if kind == "azure" else ""

    slots = factory_of(f"{{kind: {kind}, model: m{place}}}")

    assert slots.model == "m"
    assert "ProviderRunner m at " in repr(slots.create())
    await slots.aclose()


@pytest.mark.live
async def test_a_preset_speaks_to_its_provider_in_its_own_ways():
    async with SseServer(answer(delta("a"), delta(finish="stop"), DONE)) as server:
        asker = Asker(
            factory_of(
                f"{{kind: mistral, base_url: '{server.url}', model: m, api_key: k,"
                " extra_body: {safe_prompt: true}, headers: {x-team: infra}}"
            )
        )
        found = await asker.ask(sampling=SamplingParams(seed=3))
        await asker.factory.aclose()

        asked: Any = server.requests[0]
        assert found.text == "a"
        assert asked.headers["authorization"] == "Bearer k"
        assert asked.headers["x-team"] == "infra"
        assert asked.json["random_seed"] == 3
        assert asked.json["safe_prompt"] is True
        assert "stream_options" not in asked.json


async def test_what_a_provider_can_not_do_is_refused_or_dropped_as_configured():
    request = a_request(extra={"logprobs": True})
    strict = factory_of("{kind: groq, model: m}")
    lenient = factory_of("{kind: groq, model: m, drop_params: true}")

    with pytest.raises(InvalidRequestError, match="d has no logprobs"):
        strict.inspect(request)
    assert lenient.inspect(request) is None
    await strict.aclose()
    await lenient.aclose()


@pytest.mark.live
async def test_an_answer_without_an_end_marker_is_complete_and_counted():
    def counted() -> float:
        value = metrics.REGISTRY.get_sample_value(
            "orchestrator_unmarked_ends_total", {"deployment": "d"}
        )
        return value or 0.0

    before = counted()
    said = (delta("a"), delta(finish="stop"))
    async with SseServer(answer(*said), answer(*said, DONE)) as server:
        asker = Asker(factory_of(f"{{kind: vllm, base_url: '{server.url}', model: m}}"))
        assert (await asker.ask()).ending is not None
        after_one = counted()
        assert (await asker.ask()).ending is not None
        await asker.factory.aclose()

    assert (after_one - before, counted() - before) == (1.0, 1.0)
