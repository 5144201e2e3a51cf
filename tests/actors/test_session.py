"""A key's whole life, over real sockets: fetched, refused, renewed, replaced, not to be had."""

import asyncio
import itertools
import logging
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.actors.messages import Fetch, Look, Renew
from orchestrator.actors.runtime import Ref, ask, ended, kill, tell
from orchestrator.actors.session import QUIET_SECONDS, Session
from orchestrator.chaos.simulation.world import run
from orchestrator.errors import (
    OrchestratorError,
    UpstreamAuthenticationError,
    UpstreamConnectError,
    describe,
)
from orchestrator.runners.remote.credentials import Credential, Key, KeySource, file_source
from tests.fakes.keys import ANSWERED, REFUSED, oauth2, serving, token
from tests.fakes.sse_server import SseServer, Wait, refusal


def keys_sent(provider: SseServer) -> list[str]:
    return [request.headers["authorization"] for request in provider.requests]


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


@pytest.mark.live
async def test_eight_requests_refused_with_one_key_cost_one_renewal():
    all_refused = asyncio.Event()
    refused = [[Wait(all_refused), *REFUSED]] * 8
    async with (
        asyncio.timeout(5),
        SseServer(*refused, ANSWERED) as provider,
        SseServer(token("old"), token("new")) as endpoint,
        serving(provider, oauth2(endpoint)) as (sdk, _),
    ):
        streams = [sdk.submit("hi", "d") for _ in range(8)]
        await provider.arrived(8)

        all_refused.set()
        answers = [await stream for stream in streams]

        assert [given.text for given in answers] == ["yes"] * 8
        assert keys_sent(provider) == ["Bearer old"] * 8 + ["Bearer new"] * 8
        assert len(endpoint.requests) == 2


@pytest.mark.live
async def test_a_key_file_replaced_while_requests_run_needs_no_restart(tmp_path: Path):
    path = tmp_path / "key"
    path.write_text("old\n", encoding="utf-8")
    async with (
        asyncio.timeout(5),
        SseServer(ANSWERED, REFUSED, ANSWERED) as provider,
        serving(provider, "{file: key}", folder=tmp_path) as (sdk, _),
    ):
        await sdk.submit("hi", "d")
        replace(path, "new\n")

        second = await sdk.submit("hi", "d")

        assert second.text == "yes"
        assert keys_sent(provider) == ["Bearer old", "Bearer old", "Bearer new"]


@pytest.mark.live
async def test_a_key_that_its_file_still_holds_is_refused_once_and_told_so(tmp_path: Path):
    (tmp_path / "key").write_text("withdrawn", encoding="utf-8")
    async with (
        asyncio.timeout(5),
        SseServer(REFUSED) as provider,
        serving(provider, "{file: key}", folder=tmp_path) as (sdk, running),
    ):
        with pytest.raises(UpstreamAuthenticationError) as caught:
            await sdk.submit("hi", "d")

        cause = describe(caught.value.root_cause)
        credential = running.plan.credential
        assert "still has the key that was refused" in cause
        assert str(tmp_path / "key") in cause
        assert len(provider.requests) == 1
        assert credential is not None
        assert credential.read() == "withdrawn"


@pytest.mark.live
async def test_a_renewed_key_that_is_refused_too_is_not_renewed_again():
    async with (
        asyncio.timeout(5),
        SseServer(REFUSED) as provider,
        SseServer(token("one"), token("two"), token("three")) as endpoint,
        serving(provider, oauth2(endpoint)) as (sdk, _),
    ):
        with pytest.raises(UpstreamAuthenticationError):
            await sdk.submit("hi", "d")

        assert keys_sent(provider) == ["Bearer one", "Bearer two"]
        assert len(endpoint.requests) == 2


def test_a_source_that_fails_again_and_again_is_asked_less_and_less_often():
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        keyring = Keyring()
        asked_at: list[float] = []

        async def down() -> Key:
            asked_at.append(loop.time())
            return await keyring.nothing()

        keyring.brings = down
        session = at_work(keyring.credential)
        await asyncio.sleep(300)  # simulated
        await over(session)
        return asked_at

    asked_at = run(0, main)

    waits = [round(later - sooner) for sooner, later in itertools.pairwise(asked_at)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.live
async def test_a_token_is_replaced_before_it_ends_without_anybody_asking():
    async with (
        asyncio.timeout(5),
        SseServer(ANSWERED) as provider,
        SseServer(token("first", 0.1), token("second")) as endpoint,
        serving(provider, oauth2(endpoint)) as (sdk, running),
    ):
        credential = running.plan.credential
        assert credential is not None
        await endpoint.arrived(2)
        await credential.renew("first")  # comes after the fetch that runs

        await sdk.submit("hi", "d")

        assert keys_sent(provider) == ["Bearer second"]
        assert len(endpoint.requests) == 2


@pytest.mark.live
async def test_a_renewal_that_fails_keeps_the_old_key(caplog: pytest.LogCaptureFixture):
    down = refusal(503, {"error": "temporarily_unavailable"})
    async with (
        asyncio.timeout(5),
        SseServer(ANSWERED) as provider,
        SseServer(token("old", 0.1), down) as endpoint,
        serving(provider, oauth2(endpoint)) as (sdk, running),
    ):
        credential = running.plan.credential
        assert credential is not None
        await endpoint.arrived(2)
        with pytest.raises(UpstreamAuthenticationError, match="temporarily_unavailable"):
            await credential.renew("old")

        answer = await sdk.submit("hi", "d")

        assert answer.text == "yes"
        assert keys_sent(provider) == ["Bearer old"]
        assert len(endpoint.requests) == 2, "a moment after a failure nobody tries again"
        assert "the key of d stays as it is" in caplog.text


@pytest.mark.live
async def test_without_any_key_a_request_fails_with_the_reason_and_a_later_one_works():
    async with (
        asyncio.timeout(5),
        SseServer(ANSWERED) as provider,
        SseServer(refusal(401, {"error": "invalid_client"}), token("late")) as endpoint,
        serving(provider, oauth2(endpoint)) as (sdk, _),
    ):
        with pytest.raises(UpstreamAuthenticationError, match="invalid_client"):
            await sdk.submit("hi", "d")
        await endpoint.arrived(2)

        answer = await sdk.submit("hi", "d")

        assert answer.text == "yes"
        assert keys_sent(provider) == ["Bearer late"]


@pytest.mark.live
async def test_a_session_that_dies_is_started_anew_with_the_key_it_had():
    async with (
        asyncio.timeout(5),
        SseServer(ANSWERED, REFUSED, ANSWERED) as provider,
        SseServer(token("one"), token("two"), token("three")) as endpoint,
        serving(provider, oauth2(endpoint)) as (sdk, running),
    ):
        await sdk.submit("hi", "d")
        (session,) = running._sessions.values()
        assert session is not None

        kill(session)
        await ended(session)
        answer = await sdk.submit("hi", "d")

        assert answer.text == "yes"
        assert keys_sent(provider)[0] == "Bearer one"


@pytest.mark.live
async def test_no_log_error_or_repr_shows_a_secret(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    caplog.set_level(logging.DEBUG)
    secrets = ("s3cret-client", "t0ken-one", "t0ken-two")
    (tmp_path / "client").write_text("s3cret-client", encoding="utf-8")
    api_key = "{oauth2: {token_url: '%s', client_id: me, client_secret: {file: client}}}"
    told: list[str] = []
    echo = refusal(401, {"error": {"message": "wrong key t0ken-two"}})
    leaky = refusal(400, {"error": "invalid_client", "error_description": "not s3cret-client"})
    async with (
        asyncio.timeout(5),
        SseServer(REFUSED, echo) as provider,
        SseServer(token("t0ken-one"), token("t0ken-two"), leaky) as endpoint,
        serving(provider, api_key % endpoint.url, folder=tmp_path) as (sdk, running),
    ):
        credential = running.plan.credential
        assert credential is not None
        for _ in range(2):
            with pytest.raises(OrchestratorError) as caught:
                await sdk.submit("hi", "d")
            told += traceback.format_exception(caught.value)
        told += [repr(running.plan), repr(credential), repr(credential.key), repr(Renew(Key("x")))]

    shown = caplog.text + "\n".join(told)
    assert "wrong key ***" in shown
    assert [secret for secret in secrets if secret in shown] == []


class Keyring:
    """A source that brings what it is told to, when it is told to."""

    def __init__(self) -> None:
        self.brings: Callable[[], Awaitable[Key]] = self.nothing
        self.fetches = 0
        self.at_once = 0
        self.most_at_once = 0
        self.credential = Credential(KeySource(name="keyring", fetch=self.fetch), "k0")

    async def nothing(self) -> Key:
        raise UpstreamConnectError("nobody there")

    async def for_ever(self) -> Key:
        await asyncio.Event().wait()
        return Key("never")

    async def fetch(self) -> Key:
        self.fetches += 1
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            await asyncio.sleep(0)
            return await self.brings()
        finally:
            self.at_once -= 1

    def bring(self, secret: str | None) -> None:
        async def key() -> Key:
            return Key(secret) if secret else await self.nothing()

        self.brings = key


def nobody_cares(_cause: BaseException | None) -> None:
    """The end of a session whose test knows of it."""


def at_work(credential: Credential, patience: float = 5.0) -> Ref:
    return Session.start("d", credential, on_death=nobody_cares, patience=patience)


async def over(session: Ref) -> None:
    session.stop(block=False)
    await ended(session)


@given(
    waves=st.lists(
        st.tuples(st.sampled_from(["new", "same", "none"]), st.integers(1, 5)), max_size=6
    )
)
@settings(deadline=None, max_examples=60)
def test_whatever_the_source_brings_each_wave_of_refusals_costs_one_fetch(
    waves: list[tuple[str, int]],
):
    async def main() -> None:
        keyring = Keyring()
        keyring.bring("k0")
        credential = keyring.credential
        session = at_work(credential)
        await ask(session, Renew(None), within=5)
        for number, (brings, slots) in enumerate(waves, 1):
            await asyncio.sleep(2 * QUIET_SECONDS)  # simulated
            held = credential.read()
            keyring.bring({"new": f"k{number}", "same": held, "none": None}[brings])
            fetches = keyring.fetches

            told = await asyncio.gather(
                *(credential.renew(held) for _ in range(slots)), return_exceptions=True
            )

            assert keyring.fetches - fetches <= 1
            if credential.read() == held:
                assert all(isinstance(each, OrchestratorError) for each in told)
            else:
                assert told == [None] * slots
        assert keyring.most_at_once == 1
        await over(session)

    run(0, main)


async def test_a_file_that_changes_is_read_before_anybody_is_refused(tmp_path: Path):
    path = tmp_path / "key"
    path.write_text("old", encoding="utf-8")
    credential = Credential(file_source(path), "old")
    async with asyncio.timeout(5):
        session = at_work(credential)
        await ask(session, Renew(None), within=5)
        path.write_text("newer", encoding="utf-8")

        tell(session, Look())
        await ask(session, Renew(None), within=5)

        assert credential.read() == "newer"
        await over(session)


async def test_a_file_that_goes_away_or_is_half_written_changes_nothing(tmp_path: Path):
    path = tmp_path / "key"
    path.write_text("old", encoding="utf-8")
    credential = Credential(file_source(path), "old")
    async with asyncio.timeout(5):
        session = at_work(credential)
        path.write_text("", encoding="utf-8")
        tell(session, Look())
        await ask(session, Renew(None), within=5)
        path.unlink()

        tell(session, Look())
        tell(session, Fetch())
        await ask(session, Renew(None), within=5)

        assert credential.read() == "old"
        await over(session)


async def test_a_source_that_hangs_is_given_up_and_the_old_key_stays():
    keyring = Keyring()
    keyring.brings = keyring.for_ever
    credential = keyring.credential
    async with asyncio.timeout(5):
        session = at_work(credential, patience=0.01)

        with pytest.raises(UpstreamAuthenticationError, match="no key within"):
            await credential.renew("k0")

        assert credential.read() == "k0"
        await over(session)


async def test_a_session_that_is_gone_leaves_a_typed_reason():
    keyring = Keyring()
    keyring.bring("k1")
    async with asyncio.timeout(5):
        session = at_work(keyring.credential)
        await over(session)

        with pytest.raises(UpstreamAuthenticationError, match="nobody to fetch"):
            await keyring.credential.renew("k0")
