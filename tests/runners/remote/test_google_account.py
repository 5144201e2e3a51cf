import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import jwt

from orchestrator.errors import UpstreamAuthenticationError
from orchestrator.runners.remote.credentials import Key
from orchestrator.runners.remote.google_account import CLOUD_PLATFORM, google_source
from tests.fakes.keys import ANSWERED, serving, token
from tests.fakes.sse_server import SseServer

pytestmark = pytest.mark.live

PRIVATE = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PUBLIC = PRIVATE.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


def an_account(folder: Path, token_uri: str, **members: object) -> Path:
    pem = PRIVATE.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    account = {
        "type": "service_account",
        "client_email": "robot@project.iam.gserviceaccount.com",
        "private_key_id": "id-1",
        "private_key": pem.decode(),
        "token_uri": token_uri,
    }
    path = folder / "account.json"
    path.write_text(json.dumps(account | members), encoding="utf-8")
    return path


def claims_of(server: SseServer) -> dict[str, Any]:
    form = parse_qs(server.requests[0].body.decode())
    assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    decode: Any = vars(jwt)["decode"]
    return decode(form["assertion"][0], certs={"id-1": PUBLIC}, audience=server.url)


async def fetched(path: Path, *scopes: str) -> Key:
    async with asyncio.timeout(5):
        return await google_source(path, scopes or (CLOUD_PLATFORM,)).fetch()


async def test_an_assertion_is_signed_for_the_account_and_its_scopes(tmp_path: Path):
    async with SseServer(token("ya29.t")) as server:
        key = await fetched(an_account(tmp_path, server.url), "a", "b")

        claims = claims_of(server)
        assert key.secret == "ya29.t"
        assert claims["iss"] == "robot@project.iam.gserviceaccount.com"
        assert claims["scope"] == "a b"
        assert claims["exp"] - claims["iat"] == 3600


async def test_vertex_is_asked_with_a_token_of_the_account(tmp_path: Path):
    async with (
        asyncio.timeout(5),
        SseServer(ANSWERED) as provider,
        SseServer(token("ya29.t")) as endpoint,
    ):
        an_account(tmp_path, endpoint.url)
        api_key = "{google: {file: account.json}}"
        async with serving(provider, api_key, folder=tmp_path) as (sdk, _):
            await sdk.submit("hi", "d")

        assert provider.requests[0].headers["authorization"] == "Bearer ya29.t"
        assert claims_of(endpoint)["scope"] == CLOUD_PLATFORM


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"private_key": "-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----\n"}, "RSA"),
        ({"private_key": "hush"}, "RSA"),
        ({"private_key": 3}, "needs client_email, private_key"),
        ({"client_email": None}, "needs client_email, private_key"),
    ],
)
async def test_a_file_that_is_no_account_is_told_without_its_text(
    tmp_path: Path, members: dict[str, object], told: str
):
    path = an_account(tmp_path, "http://127.0.0.1:9", **members)

    with pytest.raises(UpstreamAuthenticationError, match=told) as caught:
        await fetched(path)

    assert str(path) in caught.value.message
    assert "hush" not in caught.value.message
    assert caught.value.__cause__ is None


async def test_a_file_that_has_gone_is_told_with_the_reason(tmp_path: Path):
    with pytest.raises(UpstreamAuthenticationError, match="No such file"):
        await fetched(tmp_path / "none.json")
