"""The commands over the hub's cache, and the one that talks, as processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

COMMIT = "a" * 40
CONFIG = """
deployments:
  counts:
    runner: {kind: openai, base_url: "http://127.0.0.1:9/v1", model: big}
    retry: {max_attempts: 1}
"""


def run(home: Path, *arguments: str, said: str = "") -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments],
        capture_output=True,
        text=True,
        input=said,
        timeout=50,
        check=False,
        env=os.environ
        | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "COLUMNS": "200"},
    )
    return done.returncode, done.stdout, done.stderr


def put_model(home: Path) -> Path:
    """Lays a model into the cache as the hub's own library does."""
    folder = home / "hub" / "models--owner--small"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "blobs").mkdir()
    (folder / "blobs" / "b1").write_bytes(b"x" * 2**20)
    (snapshot / "model.safetensors").symlink_to("../../blobs/b1")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    return folder


def test_a_model_in_the_cache_is_listed_with_its_size(tmp_path: Path) -> None:
    folder = put_model(tmp_path)

    code, out, _ = run(tmp_path, "models", "list", "--json")

    assert code == 0
    assert json.loads(out) == [
        {"name": "owner/small", "size_bytes": 2**20, "revisions": 1, "path": str(folder)}
    ]


def test_a_model_that_is_removed_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = put_model(tmp_path)

    code, out, _ = run(tmp_path, "models", "rm", "owner/small")

    assert (code, out) == (0, "removed owner/small: 1.0 MiB\n")
    assert not folder.exists()


def test_a_model_that_is_nowhere_is_told_in_one_line(tmp_path: Path) -> None:
    removed, pulled = (run(tmp_path, "models", how, "owner/none") for how in ("rm", "pull"))

    assert removed == (2, "", "model 'owner/none' isn't in the hub's cache\n")
    assert pulled[0] == 2
    assert pulled[2].startswith("model 'owner/none' can't be fetched: ")
    assert pulled[2].count("\n") == 1


def test_a_failure_ends_its_line_and_not_the_talk(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(CONFIG, encoding="utf-8")

    code, out, err = run(tmp_path, "chat", "-c", str(config), said="one\n\ntwo\n")

    assert (code, out) == (0, "\n\n")
    assert err.count("upstream_unreachable: ") == 2
