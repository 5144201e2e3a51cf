"""What was run: the program, its commit, the interpreter and the libraries that decide.

A simulated failure is named by its seed and this; a live one is compared with others by it.
"""

import hashlib
import platform
import shutil
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from orchestrator.errors import ConfigError

LIBRARIES = (
    "aiolimiter",
    "fastapi",
    "httptools",
    "httpx",
    "msgspec",
    "orchestrator",
    "pybreaker",
    "pykka",
    "tenacity",
    "torch",
    "uvicorn",
    "uvloop",
)
FROM = "from_"
"""Begins the names under which a journal holds it."""
ANSWERS_WITHIN = 5.0
HASH_DIGITS = 16


@cache
def provenance() -> dict[str, str]:
    """Returns what runs here, by name; without a checkout there is no commit."""
    found = {"python": platform.python_version()}
    if commit := commit_of(Path(__file__)):
        found["commit"] = commit
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue  # an extra that isn't installed
    return found


def hash_of(config: Path) -> str:
    """Returns what tells one configuration file from another, and nothing of what is in it.

    Raises:
        ConfigError: It can't be read.
    """
    try:
        content = config.read_bytes()
    except OSError as error:
        raise ConfigError(f"{config}: the file can't be read: {error.strerror}") from error
    return hashlib.sha256(content).hexdigest()[:HASH_DIGITS]


def commit_of(file: Path) -> str:
    """Returns the commit that a file belongs to, `-dirty` if something is changed; empty for none.

    A file that is merely installed somewhere within a checkout is none of it.
    """
    if checkout_of(file) is None:
        return ""
    return _git(file, "describe", "--always", "--dirty", "--abbrev=12")


def checkout_of(file: Path) -> Path | None:
    """Returns the folder of the checkout that a file belongs to; None if it belongs to none."""
    if not _git(file, "ls-files", "--error-unmatch", "--", file.name):
        return None
    return Path(_git(file, "rev-parse", "--show-toplevel"))


def _git(file: Path, *words: str) -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    try:
        told = subprocess.run(  # noqa: S603 - nothing of it comes from outside
            [git, "-C", str(file.parent), *words],
            capture_output=True,
            text=True,
            timeout=ANSWERS_WITHIN,
            check=True,
        )
    except (subprocess.SubprocessError, OSError):
        return ""  # no checkout, or one that can't be asked: the report does without
    return told.stdout.strip()
