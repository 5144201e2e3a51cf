"""A seed as another commit runs it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.chaos.command import past
from orchestrator.chaos.command.past import run_as_of
from orchestrator.errors import ConfigError

GIT = shutil.which("git") or "git"
WHO = ("-c", "user.name=x", "-c", "user.email=x@example.org")
SIMULATION = Path("orchestrator/chaos/simulation/__main__.py")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of two commits, of which only the first one's simulation exits with 3."""
    root = tmp_path / "checkout"
    place = root / SIMULATION
    place.parent.mkdir(parents=True)
    for folder in (place.parent, place.parent.parent, place.parent.parent.parent):
        (folder / "__init__.py").touch()
    git(root.parent, "init", "--quiet", str(root))
    for code in (3, 0):
        place.write_text(
            f"import sys\nsys.exit({code} if sys.argv[1:] == ['--replay', '1'] else 9)"
        )
        git(root, "add", ".")
        git(root, *WHO, "commit", "--quiet", "--message", "x")
    monkeypatch.setattr(past, "__file__", str(place))
    return root


def git(folder: Path, *words: str) -> str:
    made = subprocess.run([GIT, "-C", str(folder), *words], capture_output=True, check=True)
    return made.stdout.decode()


def test_a_seed_runs_with_the_code_of_its_commit_and_leaves_no_tree(checkout: Path) -> None:
    assert run_as_of("HEAD~1", ["--replay", "1"]) == 3
    assert run_as_of("HEAD", ["--replay", "1"]) == 0

    assert len(git(checkout, "worktree", "list").splitlines()) == 1
    assert git(checkout, "status", "--porcelain") == ""


@pytest.mark.parametrize("commit", ["no-such-commit", "--force"])
def test_what_is_no_commit_is_told(checkout: Path, commit: str) -> None:
    with pytest.raises(ConfigError, match=f"--commit {commit}: .*invalid reference"):
        run_as_of(commit, [])

    assert len(git(checkout, "worktree", "list").splitlines()) == 1


def test_without_a_checkout_there_are_no_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past, "__file__", str(tmp_path / "past.py"))

    with pytest.raises(ConfigError, match="no checkout"):
        run_as_of("HEAD", [])
