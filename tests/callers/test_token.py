"""Callers by signed tokens: what is right is let in, what is wrong in any way is not."""

import asyncio
import json
import time
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from jwt.algorithms import RSAAlgorithm

from orchestrator.callers.door import Door, Rules
from orchestrator.callers.token import STALE_AFTER, TokenCheck, TokenSettings, _Shares
from orchestrator.errors import AuthenticationError
from orchestrator.request import Priority
from tests.fakes.scripted import DONE
from tests.gateway.serving import CHAT, body, plays, serving

ISSUER = "https://login.example.com/"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def signer() -> RSAPrivateKey:
    return generate_private_key(public_exponent=65537, key_size=2048)


def token(signer: RSAPrivateKey, *, kid: str = "k1", **claims: object) -> str:
    now = int(time.time())  # noqa: TID251 - what PyJWT compares with
    claims = {"iss": ISSUER, "aud": "inference", "sub": "ann", "exp": now + 60} | claims
    return jwt.encode(
        {name: claim for name, claim in claims.items() if claim is not None},
        signer,
        algorithm="RS256",
        headers={"kid": kid},
    )


def jwks_of(signer: RSAPrivateKey) -> str:
    public = RSAAlgorithm.to_jwk(signer.public_key(), as_dict=True)
    return json.dumps({"keys": [public | {"kid": "k1", "alg": "RS256"}]})


def token_door(folder: Path, signer: RSAPrivateKey, **limits: int) -> Door:
    path = folder / "jwks.json"
    path.write_text(jwks_of(signer), "utf-8")
    return Door(Rules(tokens=TokenCheck(token_settings(str(path), **limits)).find))


def token_settings(jwks: str, **limits: int) -> TokenSettings:
    return TokenSettings(
        jwks=jwks,
        issuer=ISSUER,
        audience="inference",
        algorithms=("RS256",),
        caller_claim="sub",
        routes_claim="models",
        priority=Priority.NORMAL,
        leeway=0,
        **limits,
    )


async def test_a_signed_token_makes_the_request_its_subjects(
    tmp_path: Path, signer: RSAPrivateKey
) -> None:
    seen: list[str] = []
    stage = plays("a", DONE)
    stage.inspect = lambda request: seen.append(request.caller)
    async with (
        asyncio.timeout(10),
        serving({"m": stage}, door=token_door(tmp_path, signer)) as served,
    ):
        statuses = [
            (
                await served.client.post(
                    CHAT, json=body(), headers=bearer(token(signer, models=models))
                )
            ).status_code
            for models in ("m other", ["m"], ["other"], None)
        ]

    assert statuses == [200, 200, 403, 403]
    assert seen == ["ann", "ann"]


async def test_a_token_that_is_wrong_in_any_way_is_401(
    tmp_path: Path, signer: RSAPrivateKey
) -> None:
    stranger = generate_private_key(public_exponent=65537, key_size=2048)
    unsigned = jwt.encode({"iss": ISSUER, "sub": "ann"}, "", algorithm="none")
    wrong = [
        token(signer, exp=1),
        token(signer, iss="https://elsewhere.example.com/"),
        token(signer, aud="other"),
        token(signer, sub=None),
        token(signer, sub=""),
        token(signer, exp=None),
        token(signer, kid="k2"),
        token(stranger),
        unsigned,
        "a.b.c",
        f"{'a' * 9000}.b.c",
    ]
    async with (
        asyncio.timeout(10),
        serving({"m": plays("a", DONE)}, door=token_door(tmp_path, signer)) as served,
    ):
        statuses = [
            (await served.client.post(CHAT, json=body(), headers=bearer(one))).status_code
            for one in wrong
        ]

    assert statuses == [401] * len(wrong)


async def test_while_signers_keys_can_not_be_read_tokens_are_refused_and_the_log_says_why(
    tmp_path: Path, signer: RSAPrivateKey, caplog: pytest.LogCaptureFixture
) -> None:
    door = token_door(tmp_path, signer)
    (tmp_path / "jwks.json").unlink()
    async with asyncio.timeout(10), serving({"m": plays("a", DONE)}, door=door) as served:
        asked = [
            served.client.post(CHAT, json=body(), headers=bearer(token(signer))) for _ in range(3)
        ]
        statuses = [response.status_code for response in await asyncio.gather(*asked)]

    assert statuses == [401] * 3
    assert sum("can't be read" in message for message in caplog.messages) == 1


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "5",
        '{"keys": [{"kty": "oct", "k": "aaaa", "kid": ["x"]}]}',
        "[" * 100_000,
        '{"keys": [5]}',
        "",
    ],
)
async def test_signers_keys_of_any_wrong_shape_are_a_line_in_the_log(
    tmp_path: Path, signer: RSAPrivateKey, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    door = token_door(tmp_path, signer)
    (tmp_path / "jwks.json").write_text(content, "utf-8")

    async with asyncio.timeout(5):
        with pytest.raises(AuthenticationError):
            await door.enter({b"authorization": f"Bearer {token(signer)}".encode()})

    assert caplog.text.count("can't be read") == 1


async def test_an_address_of_signers_keys_that_speaks_no_http_is_a_line_in_the_log(
    signer: RSAPrivateKey, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"garbage\r\n\r\n")
        writer.close()

    async with asyncio.timeout(5), await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        check = TokenCheck(token_settings(f"http://127.0.0.1:{port}/"))
        with pytest.raises(AuthenticationError):
            await check.find(token(signer))

    assert caplog.text.count("can't be read") == 1


async def test_signers_keys_are_fetched_from_an_address_once_for_all(signer: RSAPrivateKey) -> None:
    content = jwks_of(signer).encode()
    fetched: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fetched.append(await reader.readuntil(b"\r\n\r\n"))
        head = b"HTTP/1.0 200 OK\r\ncontent-length: %d\r\n\r\n" % len(content)
        writer.write(head + content)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = token_settings(f"http://127.0.0.1:{port}/.well-known/jwks.json")
    door = Door(Rules(tokens=TokenCheck(settings).find))
    async with asyncio.timeout(10), server, serving({"m": plays("a", DONE)}, door=door) as served:
        asked = [
            served.client.post(CHAT, json=body(), headers=bearer(token(signer, models="m")))
            for _ in range(3)
        ]
        statuses = [response.status_code for response in await asyncio.gather(*asked)]

    assert statuses == [200] * 3
    assert len(fetched) == 1
    assert fetched[0].startswith(b"GET /.well-known/jwks.json ")


async def test_a_callers_limits_hold_over_all_its_tokens_and_for_nobody_else(
    tmp_path: Path, signer: RSAPrivateKey
) -> None:
    door = token_door(tmp_path, signer, max_concurrent=1, requests_per_minute=600)
    gate = asyncio.Event()
    stage = plays("a", gate, DONE)
    first, second = (token(signer, models="m", jti=name) for name in ("1", "2"))
    bobs = token(signer, models="m", sub="bob")
    async with asyncio.timeout(10), serving({"m": stage}, door=door) as served:
        client = served.client
        async with client.stream(
            "POST", CHAT, json=body(stream=True), headers=bearer(first)
        ) as stream:
            assert stream.status_code == 200
            busy = await client.post(CHAT, json=body(), headers=bearer(second))
            gate.set()
            other = await client.post(CHAT, json=body(), headers=bearer(bobs))
            await stream.aread()
        later = await client.post(CHAT, json=body(), headers=bearer(second))

    assert (busy.status_code, busy.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert (other.status_code, later.status_code) == (200, 200)


def test_what_is_counted_of_callers_with_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.callers.token.MAX_COUNTED", 2)
    shares = _Shares(token_settings("", max_concurrent=1))
    ann = shares.of("ann")
    shares.of("bob")

    assert shares.of("ann") is ann
    shares.of("eve")
    assert shares.of("ann") is ann
    assert len(shares._known) == 2


class Flaky:
    """What a JWKS is read from: fails so often, then gives the keys, and counts."""

    def __init__(self, failures: int, content: str) -> None:
        self.failures = failures
        self.content = content
        self.asked = 0

    def __call__(self, _: str) -> bytes:
        self.asked += 1
        if self.failures > 0:
            self.failures -= 1
            raise OSError("it is away")
        return self.content.encode()


class Later:
    """The running loop's clock, put forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop, self.by = asyncio.get_running_loop(), 0.0
        time_of = loop.time
        monkeypatch.setattr(loop, "time", lambda: time_of() + self.by)


def age(check: TokenCheck) -> None:
    """Puts what was fetched back in time."""
    check._stale_from -= STALE_AFTER
    check._fetch_from -= STALE_AFTER


async def test_a_first_fetch_that_fails_is_tried_again_within_a_second(
    signer: RSAPrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Flaky(2, jwks_of(signer))
    monkeypatch.setattr("orchestrator.callers.token._content_of", source)
    check, later = TokenCheck(token_settings("https://x/")), Later(monkeypatch)
    outcomes: list[bool] = []

    async with asyncio.timeout(5):
        for seconds in (0, 0.5, 0.6, 1, 1.1):
            later.by += seconds
            try:
                await check.find(token(signer))
                outcomes.append(True)
            except AuthenticationError:
                outcomes.append(False)

    assert outcomes == [False, False, False, False, True]
    assert source.asked == 3


async def test_keys_that_are_old_go_on_being_used_while_they_are_fetched_and_if_that_fails(
    signer: RSAPrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Flaky(0, jwks_of(signer))
    monkeypatch.setattr("orchestrator.callers.token._content_of", source)
    check = TokenCheck(token_settings("https://x/"))

    async with asyncio.timeout(5):
        await check.find(token(signer))
        source.failures = 1
        age(check)
        await check.find(token(signer))
        assert check._refreshing is not None
        await check._refreshing
        assert (await check.find(token(signer))).name == "ann"

    assert source.asked == 2


async def test_a_key_that_was_withdrawn_is_no_longer_believed_once_the_set_is_old(
    signer: RSAPrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Flaky(0, jwks_of(signer))
    monkeypatch.setattr("orchestrator.callers.token._content_of", source)
    check = TokenCheck(token_settings("https://x/"))

    async with asyncio.timeout(5):
        await check.find(token(signer))
        source.content = jwks_of(signer).replace('"k1"', '"k9"')
        age(check)
        await check.find(token(signer))
        assert check._refreshing is not None
        await check._refreshing
        with pytest.raises(AuthenticationError):
            await check.find(token(signer))


async def test_a_callers_minute_is_one_over_all_its_tokens_and_paths(
    tmp_path: Path, signer: RSAPrivateKey
) -> None:
    door = token_door(tmp_path, signer, requests_per_minute=6, tokens_per_minute=100_000)
    stage = plays("a", DONE)
    keys = [token(signer, models="m", jti=str(number)) for number in range(3)]
    anthropic = body() | {"max_tokens": 5}
    async with asyncio.timeout(10), serving({"m": stage}, door=door) as served:
        answers = [
            await served.client.post(path, json=asked, headers=bearer(key))
            for key in keys
            for path, asked in ((CHAT, body()), ("/v1/messages", anthropic))
        ]
        bobs = bearer(token(signer, models="m", sub="bob"))
        other = await served.client.post(CHAT, json=body(), headers=bobs)

    limited = [answer for answer in answers if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {200, 429}
    assert len(stage.calls) == len(answers) - len(limited) + 1
    assert all(0 < int(answer.headers["retry-after"]) <= 60 for answer in limited)
    assert other.status_code == 200


async def test_a_callers_tokens_of_the_minute_run_out_for_it_alone(
    tmp_path: Path, signer: RSAPrivateKey
) -> None:
    door = token_door(tmp_path, signer, tokens_per_minute=1000)
    anns, bobs = (token(signer, models="m", sub=name) for name in ("ann", "bob"))
    async with asyncio.timeout(10), serving({"m": plays("a", DONE)}, door=door) as served:

        async def ask(key: str, most: int) -> int:
            asked = body(max_tokens=most)
            return (await served.client.post(CHAT, json=asked, headers=bearer(key))).status_code

        statuses = [
            await ask(anns, 2000),  # more than any minute has
            await ask(bobs, 900),
        ]
        held = [await ask(anns, 990) for _ in range(2)]

    assert statuses == [413, 200]
    assert held[0] == 200
