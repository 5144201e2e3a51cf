from pathlib import Path

import pytest

from orchestrator.config import Config, parse
from orchestrator.errors import ConfigError
from orchestrator.reading.credentials import Fetched, Google, OAuth2
from orchestrator.reading.references import Secret
from orchestrator.reading.remote import Remote


def read(api_key: str, folder: Path | None = None, **environ: str) -> Config:
    yaml = f"""
deployments:
  d:
    runner:
      kind: openai
      model: m
      api_key: {api_key}
"""
    return parse(yaml, "x.yaml", folder=folder, environ=environ)


def key_of(config: Config) -> Secret | Fetched | None:
    runner = config.deployments["d"].runner
    assert isinstance(runner, Remote)
    return runner.api_key


def refusal(api_key: str, folder: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        read(api_key, folder)
    return caught.value.message


def test_a_command_that_is_a_path_starts_in_the_folder_of_the_file(tmp_path: Path):
    beside = key_of(read("{command: [./get-key, ./argument], ttl: 90s}", tmp_path))
    on_the_path = key_of(read("{command: [pass, show]}", tmp_path))

    assert isinstance(beside, Fetched)
    assert beside.way == (str(tmp_path / "get-key"), "./argument")
    assert beside.ttl == 90.0
    assert isinstance(on_the_path, Fetched)
    assert on_the_path.way == ("pass", "show")
    assert on_the_path.ttl == 600.0


def test_a_client_of_a_token_endpoint_is_read_with_its_defaults():
    key = key_of(
        read(
            "{oauth2: {token_url: 'https://x.example/t/?v=2', client_id: me,"
            " client_secret: {env: S}}}",
            S="hush",
        )
    )

    assert isinstance(key, Fetched)
    assert key.way == OAuth2.model_validate(
        {"token_url": "https://x.example/t/?v=2", "client_id": "me", "client_secret": "hush"}
    )
    assert "hush" not in repr(key)


def test_a_service_account_is_looked_for_beside_the_file(tmp_path: Path):
    (tmp_path / "account.json").write_text("{}", encoding="utf-8")

    key = key_of(read("{google: {file: account.json}}", tmp_path))

    assert isinstance(key, Fetched)
    assert isinstance(key.way, Google)
    assert key.way.file == tmp_path / "account.json"
    assert key.way.scopes == ("https://www.googleapis.com/auth/cloud-platform",)


@pytest.mark.parametrize(
    ("api_key", "told"),
    [
        ("{command: []}", "api_key.command: empty; at least one is needed"),
        ("{command: pass}", 'api_key.command: found "pass", a list'),
        ("{command: ['']}", "api_key.command[0]: "),
        ("{ttl: 5m}", "api_key: one of command, oauth2 and google is needed"),
        ("{command: [a], google: {file: x.yaml}}", "api_key.google.file: "),
        ("{command: [a], env: B}", "api_key.env: unknown key; command, ttl, oauth2 or google"),
        ("{command: [a], ttl: 5}", 'did you mean "5s"?'),
        ("{oauth2: {client_id: a}}", "api_key.oauth2.token_url: missing; The token endpoint"),
        ("{oauth2: {token_url: hush, client_id: a}}", "an address such as https://login."),
        ("{oauth2: {client_secrets: hush}}", 'did you mean "client_secret"?'),
        ("{comand: [hush]}", "api_key: not a secret; {env: NAME}, {file: PATH} or a text"),
    ],
)
def test_a_fault_of_a_fetched_key_is_told_with_its_place_and_what_is_allowed(
    api_key: str, told: str
):
    message = refusal(api_key)

    assert told in message
    assert all(line.startswith("x.yaml:7: deployments.d.runner") for line in message.split("\n"))


def test_two_ways_at_once_or_a_time_for_a_token_are_refused(tmp_path: Path):
    (tmp_path / "a.json").write_text("{}", encoding="utf-8")

    both = refusal("{command: [a], google: {file: a.json}}", tmp_path)
    timed = refusal("{ttl: 5m, google: {file: a.json}}", tmp_path)

    assert "one of command, oauth2 and google is needed, and no more" in both
    assert "ttl is for a command" in timed


def test_a_client_secret_written_into_the_file_is_taken_with_a_warning():
    config = read(
        "{oauth2: {token_url: 'https://x.example/t', client_id: me, client_secret: hush}}"
    )

    (warning,) = config.warnings
    assert warning.startswith("deployments.d.runner.api_key.oauth2.client_secret: the secret")
    assert "hush" not in warning
