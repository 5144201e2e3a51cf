"""Runs a seed as another commit of this checkout runs it, in a working tree of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from orchestrator.chaos.provenance import checkout_of
from orchestrator.errors import ConfigError

SIMULATION = "orchestrator.chaos.simulation"


def run_as_of(commit: str, arguments: Sequence[str]) -> int:
    """Runs the simulation's command line with the code of a commit and the libraries of today.

    Args:
        commit: Whatever git takes for one.
        arguments: Of `python -m orchestrator.chaos.simulation`.

    Returns:
        Its exit code.

    Raises:
        ConfigError: This is no checkout, or there is no such commit.
    """
    root, git = checkout_of(Path(__file__)), shutil.which("git")
    if root is None or git is None:
        raise ConfigError("--commit: what runs here is no checkout, so it has no commits")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        # what looks like an option must not be taken for one
        words = ("worktree", "add", "--quiet", "--detach", str(tree), "--end-of-options", commit)
        made = subprocess.run(  # noqa: S603 - no shell; git itself checks what it is given
            [git, "-C", str(root), *words], capture_output=True, text=True, check=False
        )
        if made.returncode:
            raise ConfigError(f"--commit {commit}: {made.stderr.strip().splitlines()[-1]}")
        try:
            return subprocess.run(  # noqa: S603 - ourselves
                [sys.executable, "-m", SIMULATION, *arguments],
                env={**os.environ, "PYTHONPATH": str(tree)},
                cwd=tree,
                check=False,
            ).returncode
        finally:
            subprocess.run(  # noqa: S603 - as above
                [git, "-C", str(root), "worktree", "remove", "--force", str(tree)],
                capture_output=True,
                check=False,
            )
