"""Processes on this machine: where they run, and what they cost in CPU and memory."""

import contextlib
import fcntl
import os
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
LOGS = ROOT / ".venv-peers" / "run"
GATEWAY_CORE, HARNESS_CORE = "0", "1"


def build(name: str) -> Path:
    """Compiles one of the C programs, if its source is newer."""
    source, program = HERE / f"{name}.c", HERE / "build" / name
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(exist_ok=True)
        subprocess.run(["gcc", "-O2", "-o", str(program), str(source)], check=True)
    return program


def spawn(
    name: str, command: str, core: str, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a program on one core, in a process group of its own, with its output in a file."""
    LOGS.mkdir(parents=True, exist_ok=True)
    with (LOGS / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            ["taskset", "-c", core, *shlex.split(command)],
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def tree(pid: int) -> list[int]:
    """The process and all that it started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = (entry / "stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[1]
                children.setdefault(int(parent), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def cpu_seconds(pid: int) -> float:
    """CPU of the process tree; schedstat counts nanoseconds, /proc/PID/stat steps of 10 ms."""
    total = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                total += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return total / 1e9


def resident_mb(pid: int) -> float:
    total = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{one}/status").read_text(encoding="utf-8")
            if found := re.search(r"VmRSS:\s+(\d+)", status):
                total += int(found[1])
    return total / 1024


@contextlib.contextmanager
def alone() -> Generator[None]:
    """Only one benchmark at a time measures on this machine."""
    with (Path(tempfile.gettempdir()) / "orchestrator-bench.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
