"""One measurement: a target under one kind of load, in one window of time.

Tokens are counted when they arrive, not when their request ends: otherwise requests that straddle
the window are credited wrongly, to slow targets most of all.
"""

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from bench.machine import HARNESS_CORE, cpu_seconds
from bench.targets import Target


@dataclass(frozen=True)
class Cell:
    """A kind of load."""

    name: str
    chunks: int
    connections: int
    gap_us: int = 0
    """Between two chunks of a stream; 0 sends them as fast as it goes."""
    rate: int = 0
    """Requests per second, whether answers come or not; 0 waits for the answer."""


CELLS = (
    Cell("1 chunk, 64 connections", 1, 64),
    Cell("64 chunks, 64 connections", 64, 64),
    Cell("32 streams at 50 tokens/s", 64, 32, gap_us=20_000),
    Cell("low load: 20 requests/s", 2, 4, rate=20),
)


@dataclass(frozen=True)
class Sample:
    """What one window showed."""

    requests_per_second: float
    tokens_per_second: float
    cpu_us_per_request: float
    cpu_us_per_token: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    gap_p99_ms: float
    gateway_cpu: float
    """Share of its core."""
    harness_cpu: float
    errors: int
    short: int
    """Answers that lost or invented tokens."""


def measure(
    target: Target, pid: int, cell: Cell, *, loadgen: Path, upstream_pid: int, seconds: float
) -> Sample:
    """Loads the target and measures it meanwhile."""
    warm, window = (5.0, max(12.0, seconds)) if target.slow else (0.7, seconds)
    command = [
        *("taskset", "-c", HARNESS_CORE, str(loadgen), "--port", str(target.port)),
        *("--chunks", str(cell.chunks), "--conc", str(cell.connections)),
        *("--secs", str(window), "--warm", str(warm)),
    ]
    for header in target.headers:
        command += ["--header", header]
    if cell.gap_us:
        command += ["--note", f"mock:gap_us={cell.gap_us}"]
    if cell.rate:
        command += ["--rate", str(cell.rate)]
    client = subprocess.Popen(command, stdout=subprocess.PIPE)
    time.sleep(warm)  # a measurement needs its window: there is no event to wait for
    before, upstream, began = cpu_seconds(pid), cpu_seconds(upstream_pid), time.monotonic()
    time.sleep(window - 0.1)  # the window itself
    took = time.monotonic() - began
    gateway = (cpu_seconds(pid) - before) / took
    harness = (cpu_seconds(upstream_pid) - upstream) / took
    said = json.loads(client.communicate()[0])
    tokens = float(said["tps"])
    per_token = gateway / tokens * 1e6 if tokens else 0.0
    return Sample(
        requests_per_second=tokens / cell.chunks,
        tokens_per_second=tokens,
        cpu_us_per_request=per_token * cell.chunks,
        cpu_us_per_token=per_token,
        ttft_p50_ms=said["ttft_p50_us"] / 1e3,
        ttft_p99_ms=said["ttft_p99_us"] / 1e3,
        gap_p99_ms=said["gap_p99_us"] / 1e3,
        gateway_cpu=gateway,
        harness_cpu=harness + said["client_cpu_s"] / (window + warm),
        errors=said["errors"],
        short=said["short"],
    )
