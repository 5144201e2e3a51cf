"""In-process rows: what a Python program pays that asks through a library, without a gateway.

Each row is a program of its own against a running provider, so that libraries don't share a
process; all keep 64 streams of 64 chunks going, on one core.
"""

import json
import statistics
import subprocess
from pathlib import Path

from bench.machine import GATEWAY_CORE, HARNESS_CORE, HERE, ROOT, build, end, spawn
from bench.targets import LITELLM, UPSTREAM_PORT

ROUNDS = 3
ROWS: tuple[tuple[str, Path], ...] = (
    ("orchestrator", ROOT / ".venv" / "bin" / "python"),
    ("openai", ROOT / ".venv" / "bin" / "python"),
    ("litellm", LITELLM.with_name("python")),
)


def in_process_table() -> str:
    """Markdown: tokens per second and CPU per token of each library that is installed."""
    upstream = spawn("upstream", f"{build('upstream')} {UPSTREAM_PORT}", HARNESS_CORE)
    rows = [(library, python) for library, python in ROWS if python.exists()]
    samples: dict[str, list[dict[str, float]]] = {library: [] for library, _ in rows}
    try:
        for _ in range(ROUNDS):
            for library, python in rows:
                said = subprocess.run(
                    ["taskset", "-c", GATEWAY_CORE, str(python), str(HERE / "client.py"), library],
                    stdout=subprocess.PIPE,
                    check=True,
                    cwd=ROOT,
                )
                samples[library].append(json.loads(said.stdout.splitlines()[-1]))
    finally:
        end(upstream)
    lines = [
        "### In process: 64 streams of 64 chunks",
        "",
        "| library | tok/s | CPU us/tok | it/ours, CPU |",
        "|---|--:|--:|--:|",
    ]
    middle = {
        library: {key: statistics.median(one[key] for one in found) for key in found[0]}
        for library, found in samples.items()
    }
    ours = middle["orchestrator"]["cpu_us_per_token"]
    for library, row in middle.items():
        cost = row["cpu_us_per_token"]
        lines.append(
            f"| {library} | {row['tokens_per_second']:.0f} | {cost:.1f} | {cost / ours:.1f} |"
        )
    return "\n".join([*lines, ""])
