"""The endpoints beside the hot path, and the document that describes them all."""

import asyncio
import logging

import pytest

from orchestrator.gateway.app import APIS
from tests.fakes.scripted import DONE, Stage
from tests.gateway.serving import CHAT, body, plays, serving


def make_stage() -> Stage:
    return plays("a", DONE)


async def test_every_route_is_listed_as_a_model() -> None:
    async with asyncio.timeout(5), serving({"a": make_stage()}, {"org/r": ["a"]}) as served:
        listed = (await served.client.get("/v1/models")).json()
        one = await served.client.get("/v1/models/org/r")

    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["org/r", "a"]
    assert one.json()["id"] == "org/r"
    assert one.json()["object"] == "model"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/models/none", 404, "model_not_found"),
        ("GET", "/nowhere", 404, "not_found"),
        ("POST", "/readyz", 405, "method_not_allowed"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("GET", "/readyz?route=none", 404, "model_not_found"),
        ("GET", f"{CHAT}/", 404, "not_found"),
    ],
)
async def test_every_refusal_has_the_shape_of_the_api(
    method: str, path: str, status: int, code: str
) -> None:
    async with asyncio.timeout(5), serving({"m": make_stage()}) as served:
        response = await served.client.request(method, path, headers={"x-request-id": "me"})

    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"] == "me"


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("DELETE", "/v1/messages/count_tokens", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("GET", "/v1/messages/", 404, "not_found_error"),
    ],
)
async def test_below_anthropics_path_every_refusal_has_anthropics_shape(
    method: str, path: str, status: int, kind: str
) -> None:
    async with asyncio.timeout(5), serving({"m": make_stage()}) as served:
        response = await served.client.request(method, path, headers={"x-request-id": "me"})

    told = response.json()
    assert response.status_code == status
    assert (told["type"], told["error"]["type"], told["request_id"]) == ("error", kind, "me")


async def test_the_document_names_anthropics_errors_where_they_are_answered() -> None:
    async with asyncio.timeout(5), serving({"m": make_stage()}) as served:
        document = (await served.client.get("/openapi.json")).json()

    def errors_of(path: str) -> str:
        answer = document["paths"][path]["post"]["responses"]["400"]
        return answer["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]

    assert errors_of("/v1/messages") == "AnthropicError"
    assert errors_of("/v1/messages/count_tokens") == "AnthropicError"
    assert errors_of(CHAT) == "Error"
    assert document["components"]["schemas"]["AnthropicError"]["required"][0] == "type"


async def test_the_document_names_models_and_failures_of_the_chat_route() -> None:
    async with asyncio.timeout(5), serving({"m": make_stage()}, {"r": ["m"]}) as served:
        document = (await served.client.get("/openapi.json")).json()
        again = (await served.client.get("/openapi.json")).json()

    operation = document["paths"][CHAT]["post"]
    fields = document["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert fields["model"]["enum"] == ["r", "m"]
    assert {"400", "404", "413", "422", "429", "500", "502", "503", "504"} < set(
        operation["responses"]
    )
    assert "/readyz" in document["paths"]
    assert again == document


async def test_the_document_has_every_path_but_those_of_administrators() -> None:
    async with asyncio.timeout(5), serving({"m": make_stage()}) as served:
        document = (await served.client.get("/openapi.json")).json()
        served_paths = {getattr(route, "path", "") for route in served.gateway.routes}

    assert {api.path for api in APIS} < set(document["paths"])
    written = {path.replace("{model}", "{model:path}") for path in document["paths"]}
    assert served_paths - written == {"/openapi.json"}
    assert all("400" in document["paths"][api.path]["post"]["responses"] for api in APIS)


async def test_the_metrics_count_what_was_served() -> None:
    async with asyncio.timeout(5), serving({"counted": make_stage()}) as served:
        await served.ask(model="counted")
        response = await served.client.get("/metrics")

    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'orchestrator_requests_total{outcome="finished",route="counted"} 1.0' in response.text


async def test_an_unexpected_error_of_an_endpoint_is_told_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def explode() -> None:
        raise ZeroDivisionError("inner matters")

    async with asyncio.timeout(5), serving({"m": make_stage()}) as served:
        served.gateway.get("/explode")(explode)
        response = await served.client.get("/explode", headers={"x-request-id": "bug-2"})

    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "inner" not in response.text
    assert response.headers["x-request-id"] == "bug-2"
    assert [record.message for record in caplog.records if record.exc_info] == [
        "request bug-2 broke the gateway"
    ]


async def test_the_access_log_has_one_line_a_request_and_no_prompt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "orchestrator.access")

    async with asyncio.timeout(5), serving({"m": make_stage()}) as served:
        await served.client.post(
            CHAT,
            json=body(messages=[{"role": "user", "content": "classified"}]),
            headers={"x-request-id": "r-7", "authorization": "Bearer sk-secret"},
        )
        await served.client.get("/livez")
        await served.client.get("/a%0Aforged line")

    lines = [record.message for record in caplog.records if record.name == "orchestrator.access"]
    assert len(lines) == 2
    assert lines[0].startswith("POST /v1/chat/completions 200 route=m id=r-7 ms=")
    assert lines[0].endswith("prompt=1 completion=1 attempts=1")
    assert "\n" not in lines[1]
    assert "classified" not in caplog.text
    assert "sk-secret" not in caplog.text


async def test_the_access_log_can_be_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "orchestrator.access")

    async with asyncio.timeout(5), serving({"m": make_stage()}, access_log=False) as served:
        await served.ask()
        await served.client.get("/livez")

    assert [record for record in caplog.records if record.name == "orchestrator.access"] == []


async def test_a_parameter_of_the_wrong_type_is_named_in_the_shape_of_the_api() -> None:
    def typed(number: int) -> int:
        return number

    async with asyncio.timeout(5), serving({"m": make_stage()}) as served:
        served.gateway.get("/typed/{number}")(typed)
        response = await served.client.get("/typed/many")

    assert response.status_code == 422
    error = response.json()["error"]
    assert (error["param"], error["type"]) == ("number", "invalid_request_error")
