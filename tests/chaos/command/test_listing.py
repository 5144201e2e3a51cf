"""What `chaos list` tells."""

import json

from typer.testing import CliRunner

from orchestrator.chaos.command.commands import app


def test_every_fault_is_listed_with_where_it_runs_and_its_keys_defaults_and_units() -> None:
    shown = CliRunner().invoke(app, ["list", "faults", "--json"])

    rows = {(row["target"], row["fault"]): row for row in json.loads(shown.output)}
    assert {row["runs in"] for row in rows.values()} == {"live, sim"}
    assert rows["worker", "slow"]["takes"] == (
        "after_tokens 0 tokens, at_point, duty 0.3, every, for 2.0s, nth 1, times 1"
    )
    assert rows["provider", "slicer"]["takes"] == (
        "every, for 2.0s, size 16 bytes, times 1, toxicity 1.0"
    )
