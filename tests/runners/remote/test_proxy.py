"""Providers behind a proxy: tunnels for https, whole addresses for http, and who needs none."""

import asyncio

import pytest

from orchestrator.config import parse
from orchestrator.errors import ConfigError, UpstreamConnectError
from orchestrator.plan import plan_deployments
from orchestrator.runners.remote.proxy import Proxy, proxy_at, proxy_for
from tests.fakes.keys import ANSWERED
from tests.fakes.proxy import TunnelProxy
from tests.fakes.sse_server import CERTIFICATE, SseServer
from tests.runners.remote.asking import Asker, asking

BASIC = "Basic dTpwQA=="
"""Of the user `u` with the password `p@`."""


def port_of(server: SseServer) -> int:
    return int(server.url.split(":")[2].split("/")[0])


@pytest.mark.live
async def test_https_goes_through_a_tunnel_that_is_used_again():
    async with (
        asyncio.timeout(5),
        SseServer(ANSWERED, tls=True) as server,
        TunnelProxy(port_of(server)) as proxy,
        asking(
            server,
            ca_file=str(CERTIFICATE),
            proxy=proxy_at(f"http://u:p%40@127.0.0.1:{proxy.port}"),
        ) as asker,
    ):
        port = port_of(server)
        answers = [await asker.ask(), await asker.ask()]

    assert [answer.text for answer in answers] == ["yes", "yes"]
    (head,) = proxy.heads
    assert head.startswith(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n")
    assert f"proxy-authorization: {BASIC}\r\n" in head
    assert "proxy-authorization" not in server.requests[0].headers
    assert server.requests[0].line.startswith("POST /v1/chat/completions")


@pytest.mark.live
async def test_plain_http_is_sent_to_the_proxy_with_the_whole_address():
    async with SseServer(ANSWERED) as server:
        proxy = Proxy("127.0.0.1", port_of(server), BASIC)
        async with asking("http://acme.test:8000/v1", proxy=proxy) as asker:
            answer = await asker.ask()

    assert answer.text == "yes"
    request = server.requests[0]
    assert request.line.startswith("POST http://acme.test:8000/v1/chat/completions ")
    assert request.headers["host"] == "acme.test:8000"
    assert request.headers["proxy-authorization"] == BASIC


@pytest.mark.live
@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"HTTP/1.1 407 Authentication Required\r\n\r\n", "refused with 407"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "doesn't speak HTTP"),
        (b"", "closed the connection"),
        (b"x" * (17 << 10), "doesn't speak HTTP"),
    ],
)
async def test_a_proxy_that_opens_no_tunnel_means_no_connection(said: bytes, why: str):
    async with (
        asyncio.timeout(5),
        TunnelProxy(1, said) as proxy,
        asking(
            "https://acme.test/v1", ca_file=str(CERTIFICATE), proxy=Proxy("127.0.0.1", proxy.port)
        ) as asker,
    ):
        answer = await asker.ask()

    assert isinstance(answer.error, UpstreamConnectError)
    assert why in str(answer.error)


@pytest.mark.live
async def test_a_host_that_is_not_who_it_says_gets_no_request_through_a_tunnel():
    async with (
        asyncio.timeout(5),
        SseServer(ANSWERED, tls=True) as server,
        TunnelProxy(port_of(server)) as proxy,
        asking(
            "https://acme.test/v1", ca_file=str(CERTIFICATE), proxy=Proxy("127.0.0.1", proxy.port)
        ) as asker,
    ):
        answer = await asker.ask()

    assert isinstance(answer.error, UpstreamConnectError)
    assert server.requests == []


@pytest.mark.parametrize(
    ("host", "no_proxy", "direct"),
    [
        ("api.acme.com", (), False),
        ("api.acme.com", ("acme.com",), True),
        ("api.acme.com", (".Acme.com",), True),
        ("notacme.com", ("acme.com",), False),
        ("api.acme.com", ("*",), True),
        ("10.1.2.3", ("10.0.0.0/8",), True),
        ("11.1.2.3", ("10.0.0.0/8", "11.1.2.4"), False),
        ("[::1]", ("::1",), True),
    ],
)
def test_some_hosts_are_reached_directly(host: str, no_proxy: tuple[str, ...], direct: bool):
    found = proxy_for(f"https://{host}/v1", "http://p:3128", no_proxy)

    assert found == (None if direct else Proxy("p", 3128))


def test_the_environment_is_asked_only_where_the_configuration_says_so(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("HTTPS_PROXY", "http://secure:1")
    monkeypatch.setenv("http_proxy", "plain:2")
    monkeypatch.setenv("NO_PROXY", "localhost, .internal")

    assert proxy_for("https://acme.com/v1", None, ()) is None
    assert proxy_for("https://acme.com/v1", "env", ()) == Proxy("secure", 1)
    assert proxy_for("http://acme.com/v1", "env", ()) == Proxy("plain", 2)
    assert proxy_for("http://models.internal/v1", "env", ()) is None


YAML = """
deployments:
  m:
    runner:
      kind: openai
      base_url: http://acme.test/v1
      model: m
      proxy: {proxy}
      no_proxy: {hosts}
"""


@pytest.mark.live
async def test_the_configurations_proxy_is_taken_unless_the_host_is_excepted():
    async with SseServer(ANSWERED) as server:
        given = f"http://127.0.0.1:{port_of(server)}"
        asker = Asker(plan_deployments(parse(YAML.format(proxy=given, hosts="[]")))[0][0].factory)
        answer = await asker.ask()
        await asker.factory.aclose()

    assert answer.text == "yes"


@pytest.mark.parametrize("given", ["socks5://p:1", "https://p", "p:3128", "http://", "http://a b"])
def test_a_proxy_that_is_none_is_refused_without_repeating_it(given: str):
    with pytest.raises(ConfigError, match="not a proxy's address") as refusal:
        parse(YAML.format(proxy=f'"{given}"', hosts="[]"))

    assert refusal.value.param == "deployments.m.runner.proxy"
    assert given not in str(refusal.value).partition("not a proxy")[2].partition("allowed")[2]
