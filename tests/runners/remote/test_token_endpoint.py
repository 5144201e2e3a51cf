import asyncio
import base64
from typing import Any
from urllib.parse import parse_qs

import pytest

from orchestrator.errors import OrchestratorError, UpstreamAuthenticationError, UpstreamConnectError
from orchestrator.runners.remote.credentials import Key
from orchestrator.runners.remote.token_endpoint import (
    ClientCredentials,
    TokenEndpoint,
    client_credentials_source,
)
from tests.fakes.keys import token
from tests.fakes.sse_server import CERTIFICATE, Close, Script, Send, SseServer, head, refusal

pytestmark = pytest.mark.live


async def fetched(server: SseServer | str, ca_file: str | None = None, **client: Any) -> Key:
    url = server if isinstance(server, str) else server.url
    given: dict[str, Any] = {"client_id": "me", "client_secret": lambda: "hush"}
    source = client_credentials_source(
        TokenEndpoint(url=url, ca_file=ca_file), ClientCredentials(**given | client)
    )
    assert source.token
    async with asyncio.timeout(5):
        return await source.fetch()


def form_of(server: SseServer) -> dict[str, list[str]]:
    return parse_qs(server.requests[0].body.decode())


async def test_id_and_secret_go_form_encoded_into_the_header():
    async with SseServer(token("t")) as server:
        await fetched(server, client_id="a:b", client_secret=lambda: "c d/e")

        sent = server.requests[0].headers["authorization"].removeprefix("Basic ")
        assert base64.b64decode(sent) == b"a%3Ab:c+d%2Fe"
        assert form_of(server) == {"grant_type": ["client_credentials"]}


async def test_id_and_secret_go_into_the_form_where_the_endpoint_wants_them_there():
    async with SseServer(token("t")) as server:
        await fetched(server, auth="post", scope="a b", params={"audience": "https://x"})

        assert "authorization" not in server.requests[0].headers
        assert form_of(server) == {
            "grant_type": ["client_credentials"],
            "client_id": ["me"],
            "client_secret": ["hush"],
            "scope": ["a b"],
            "audience": ["https://x"],
        }


@pytest.mark.parametrize(
    ("expires_in", "lifetime"), [(600, 540.0), ("500", 450.0), (7200, 7140.0), (10, 9.0)]
)
async def test_a_token_is_renewed_a_minute_or_a_tenth_before_its_end(
    expires_in: object, lifetime: float
):
    async with SseServer(token("t", expires_in)) as server:
        key = await fetched(server)

    assert key.secret == "t"
    assert key.renew_at - asyncio.get_running_loop().time() == pytest.approx(lifetime, abs=2)


async def test_a_token_that_tells_no_end_is_good_until_it_is_refused():
    async with SseServer(token("t", None)) as server:
        assert (await fetched(server)).renew_at == float("inf")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (refusal(401, {"error": "invalid_client"}), "HTTP 401 invalid_client"),
        (
            refusal(400, {"error": "x", "error_description": "hush is wrong"}),
            r"400 x: \*\*\* is wrong",
        ),
        (refusal(500, "hush"), "HTTP 500"),
        (refusal(200, {"token": "hush"}), "without a token"),
        (refusal(200, ["hush"]), "without a token"),
        (refusal(200, {"access_token": 3}), "without a token"),
        (token(""), "is empty"),
        (token("hush\nhush"), "no header can carry"),
        (token("hush", -1), "expired already"),
        (token("hush", "soon"), "without a token"),
        (token("hush", "nan"), "expired already"),
        (refusal(302, {}, "location: http://127.0.0.1:9/"), "HTTP 302"),
        ([Send(head(framing="content-length: 70000") + b"h" * 70000)], "without a token"),
    ],
)
async def test_an_endpoint_without_a_token_is_told_without_what_was_sent(script: Script, told: str):
    async with SseServer(script) as server:
        with pytest.raises(UpstreamAuthenticationError, match=told) as caught:
            await fetched(server)

        assert server.url in caught.value.message
        assert "hush" not in caught.value.message


@pytest.mark.parametrize("script", [[Close()], [Send(head() + b"9\r\n"), Close()]])
async def test_an_endpoint_that_breaks_off_is_unreachable(script: Script):
    async with SseServer(script) as server:
        with pytest.raises(UpstreamConnectError):
            await fetched(server)

        await server.ended()


async def test_an_endpoint_that_is_not_there_is_unreachable():
    with pytest.raises(UpstreamConnectError, match=r"127\.0\.0\.1:9/token"):
        await fetched("http://127.0.0.1:9/token")


async def test_an_own_authority_is_trusted_and_nobody_else_is():
    async with SseServer(token("t"), tls=True) as server:
        key = await fetched(server, ca_file=str(CERTIFICATE))
        with pytest.raises(OrchestratorError, match="certificate verify failed"):
            await fetched(server)

    assert key.secret == "t"
