"""Keys of a file, which may change while they are in use."""

import contextlib
import hmac
import json
import stat
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from orchestrator.callers.caller import Caller
from orchestrator.callers.key import digest_of, make_key
from orchestrator.callers.keyring import BudgetsOfCallers, Keyring
from orchestrator.callers.making import NewKey, create_key, revoke_key
from orchestrator.callers.record import KeyBudget, read_records
from orchestrator.errors import AuthenticationError, ConfigError, InvalidRequestError
from orchestrator.request import Priority

NOW = 1_700_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        self.now += 2  # so that the file is looked at each time
        return self.now


def made(path: Path, **members: object) -> tuple[str, str]:
    wanted = msgspec.convert({"caller": "ann"} | members, NewKey)
    record, key = create_key(path, wanted, now=NOW)
    return record.id, key


def why(keyring: Keyring, key: str) -> str:
    with pytest.raises(AuthenticationError) as caught:
        keyring.find(key)
    return caught.value.message


def test_a_key_that_was_made_is_known_with_all_it_may(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    _, key = made(path, routes=("chat",), priority="high", max_concurrent=3, admin=True)

    caller: Caller = Keyring(path, Clock()).find(key)

    assert (caller.name, caller.priority, caller.max_concurrent) == ("ann", Priority.HIGH, 3)
    assert caller.admin
    assert caller.may_use("chat")
    assert not caller.may_use("other")


def test_the_file_holds_no_key_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    _, key = made(path)

    assert key.rpartition("-")[2] not in path.read_text(encoding="utf-8")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_that_is_made_or_revoked_is_so_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keyring = Keyring(path, Clock())

    key_id, key = made(path)
    before = keyring.find(key)
    made(path, caller="bob")
    again = keyring.find(key)
    revoke_key(path, f"sk-orc-{key_id}-...", now=NOW)

    assert again is before  # what it has counted is kept
    assert why(keyring, key) == "the API key was revoked"


def test_an_expired_key_is_refused_and_an_unknown_one_tells_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key_id, key = made(path, expires_in_days=1)
    clock = Clock()
    keyring = Keyring(path, clock)

    keyring.find(key)
    clock.now += 86_400

    assert why(keyring, key) == "the API key has expired"
    assert why(keyring, f"sk-orc-{key_id}-guessed") == "the API key isn't valid"
    assert why(keyring, "sk-orc-000000000000-guessed") == "the API key isn't valid"
    assert why(keyring, "something") == "the API key isn't valid"


def test_a_file_that_can_not_be_read_any_more_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    _, key = made(path)
    keyring = Keyring(path, Clock())

    path.write_text("{", encoding="utf-8")

    assert keyring.find(key).name == "ann"
    assert keyring.find(key).name == "ann"
    assert sum("no file of keys" in message for message in caplog.messages) == 1
    with pytest.raises(ConfigError, match="no file of keys"):
        Keyring(path, Clock())


@pytest.mark.parametrize(
    "wrong",
    [
        {"requests_per_minute": 0},
        {"tokens_per_minute": 10**18 * 10},
        {"max_concurrent": -1},
        {"digest": "é" * 64},
        {"expires_at": 1 << 60},
        {"caller": ""},
        {"caller": "a\nb"},
        {"budgets": [{"per": "day"}]},
    ],
)
def test_a_file_that_somebody_has_edited_wrongly_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: dict[str, object]
) -> None:
    path = tmp_path / "keys.json"
    _, key = made(path)
    keyring = Keyring(path, Clock())

    content = json.loads(path.read_text(encoding="utf-8"))
    content["keys"][0].update(wrong)
    path.write_text(json.dumps(content), encoding="utf-8")

    assert keyring.find(key).name == "ann"
    assert "no file of keys" in caplog.text
    with pytest.raises(ConfigError, match="no file of keys"):
        Keyring(path, Clock())


def test_a_file_that_is_gone_while_the_gateway_runs_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    key_id, key = made(path)
    content = path.read_bytes()
    clock = Clock()
    keyring = Keyring(path, clock)

    path.unlink()
    let_in = [keyring.find(key).name for _ in range(2)]
    path.write_bytes(content)
    revoke_key(path, key_id, now=NOW)
    keyring.look()

    assert let_in == ["ann", "ann"]
    assert caplog.text.count("are gone") == 1
    assert why(keyring, key) == "the API key was revoked"


def test_the_budgets_of_keys_are_told_by_caller(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    told: list[BudgetsOfCallers] = []
    made(path, budgets=(KeyBudget(per="day", tokens=5),))
    keyring = Keyring(path, Clock())
    keyring.tell_budgets(told.append)

    key_id, key = made(path, budgets=(KeyBudget(per="hour", nano_usd=7),))
    keyring.find(key)
    revoke_key(path, key_id, now=NOW)
    keyring.look()

    assert [[(b.per, b.tokens, b.nano_usd) for b in at["ann"]] for at in told] == [
        [("day", 5, None)],
        [("day", 5, None), ("hour", None, 7)],
        [("day", 5, None)],
    ]


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"caller": ""}, "caller"),
        ({"caller": "a\nb"}, "caller"),
        ({"routes": ()}, "routes"),
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"expires_in_days": -1}, "expires_in_days"),
        ({"expires_in_days": 1e308}, "expires_in_days"),
        ({"requests_per_minute": 10**400}, "requests_per_minute"),
        ({"budgets": (KeyBudget(per="day"),)}, "budgets"),
        ({"budgets": (KeyBudget(per="day", nano_usd=1 << 63),)}, "budgets"),
    ],
)
def test_a_key_that_makes_no_sense_is_not_made(
    tmp_path: Path, members: dict[str, object], param: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        made(tmp_path / "keys.json", **members)

    assert caught.value.param == param
    assert read_records(tmp_path / "keys.json") == ()


def test_a_key_that_is_not_there_can_not_be_revoked(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no key"):
        revoke_key(tmp_path / "keys.json", "none", now=NOW)


def test_a_folder_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be written"):
        made(tmp_path / "none" / "keys.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["right", "wrong secret", "unknown id", "no key"])
def test_whatever_key_is_shown_the_same_work_is_done(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = create_key(tmp_path / "keys.json", NewKey(caller="ann"), now=0)[1]
    shown = {
        "right": right,
        "wrong secret": right[:-1] + ("A" if right[-1] != "A" else "B"),
        "unknown id": make_key()[1],
        "no key": "x" * len(right),
    }[kind]
    keyring = Keyring(tmp_path / "keys.json", lambda: 0.0)
    work: list[tuple[str, int]] = []

    def hashed(key: str) -> str:
        work.append(("hash", len(key)))
        return digest_of(key)

    def compared(one: str, other: str) -> bool:
        work.append(("compare", len(one)))
        assert len(one) == len(other)
        return hmac.compare_digest(one, other)

    monkeypatch.setattr("orchestrator.callers.key.digest_of", hashed)
    monkeypatch.setattr("orchestrator.callers.key.hmac", SimpleNamespace(compare_digest=compared))
    with contextlib.suppress(AuthenticationError):
        keyring.find(shown)

    assert work == [("hash", len(right)), ("compare", 64)]
