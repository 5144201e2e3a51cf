"""What the ledger holds, as the command line prints it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.ledger.store import Store
from tests.ledger.rows import a_row

CONFIG = """
deployments:
  far: {runner: {kind: openai, base_url: "http://127.0.0.1:9/v1", model: big}}
"""
LEDGER = "ledger: {path: ./used.db}"


def run(folder: Path, *arguments: str, config: str = CONFIG + LEDGER) -> tuple[int, str, str]:
    path = folder / "gateway.yaml"
    path.write_text(config, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "usage", str(path), *arguments],
        capture_output=True,
        check=False,
        text=True,
        timeout=30,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.live
def test_usage_is_added_up_by_what_is_asked_for(tmp_path: Path) -> None:
    store = Store(tmp_path / "used.db")
    store.add([a_row("1"), a_row("2")._replace(caller="bob", cost_nano_usd=None)])
    store.close()

    code, table, _ = run(tmp_path, "--by", "caller")
    _, listed, _ = run(tmp_path, "--by", "day", "--json")
    _, later, _ = run(tmp_path, "--since", "2000-01-01", "--json")

    assert code == 0
    assert "ann" in table
    assert "0.0000001" in table
    (day,) = json.loads(listed)
    assert (day["by"], day["name"], day["requests"], day["unpriced"]) == ("day", "1970-01-01", 2, 1)
    assert json.loads(later) == []


@pytest.mark.live
@pytest.mark.parametrize(
    ("config", "told"),
    [(CONFIG, "no section ledger"), (CONFIG + LEDGER, "used.db can't be read: there is no")],
)
def test_without_a_ledger_it_says_so_in_one_line(tmp_path: Path, config: str, told: str) -> None:
    code, _, error = run(tmp_path, config=config)

    assert code == 2
    assert told in error
    assert error.count("\n") == 1
