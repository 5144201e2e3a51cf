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
    commit = _commit()
    if commit:
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
        OSError: It can't be read.
    """
    return hashlib.sha256(config.read_bytes()).hexdigest()[:HASH_DIGITS]


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    here = Path(__file__).parent
    asked = [git, "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        told = subprocess.run(  # noqa: S603 - nothing of it comes from outside
            asked, capture_output=True, text=True, timeout=ANSWERS_WITHIN, check=True
        )
    except (subprocess.SubprocessError, OSError):
        return ""
    return told.stdout.strip()
