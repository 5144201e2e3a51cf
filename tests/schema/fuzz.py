"""Requests made from the published document, right and wrong ones, sent to a real gateway.

    python -m tests.schema.fuzz 10000

The gateway is the real one on a real socket; the provider behind it is scripted. Every answer must
have a status that the document names for that path, and none of them a 5xx.
"""

import asyncio
import re
import sys
from dataclasses import dataclass

from orchestrator.events import Finished, FinishReason, Usage
from orchestrator.request import PriorityRequest, Work
from orchestrator.runners.remote.works import asked_for
from tests.fakes.scripted import Line, Stage
from tests.gateway.serving import serving

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance"
PHASES = "examples,coverage,fuzzing"
ENDED = Finished(FinishReason.STOP, Usage(prompt_tokens=3, completion_tokens=2))


@dataclass(frozen=True)
class Verdict:
    """What came of it."""

    exit_code: int
    report: str

    @property
    def cases(self) -> int:
        """How many requests were made."""
        found = re.search(r"(\d[\d,]*) generated", self.report)
        return int(found[1].replace(",", "")) if found else 0


def answer(request: PriorityRequest, _: int) -> list[Line]:
    """A provider that can do everything."""
    count = asked_for(request)
    match request.work:
        case Work.CHAT:
            others = (FinishReason.STOP,) * (request.sampling.n - 1)
            return ["Hel", "lo", Finished(FinishReason.STOP, ENDED.usage, others)]
        case Work.EMBED:
            items = [f'{{"index":{place},"embedding":[0.5]}}' for place in range(count)]
        case Work.RERANK:
            items = [f'{{"index":{place},"relevance_score":0.5}}' for place in range(count)]
        case _:
            items = ['[{"label":"joy","score":0.5}]'] * count
    return [f"[{','.join(items)}]", ENDED]


async def fuzz(examples: int, seed: int, phases: str = PHASES) -> Verdict:
    """Sends about that many requests to each path.

    Args:
        examples: For each of the document's operations.
        seed: Of the generator.
        phases: Of schemathesis.
    """
    stage = Stage(answer, works=frozenset(Work))
    async with serving({"m": stage}, {"r": ["m"]}, access_log=False, slots=64) as served:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json"),
            *("--checks", CHECKS, "--phases", phases, "--max-examples", str(examples)),
            *("--no-shrink", "--generation-database", "none"),
            *("--seed", str(seed), "--workers", "2", "--max-failures", "20"),
            *("--suppress-health-check", "all", "--no-color"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    return Verdict(process.returncode or 0, output.decode())


def main() -> None:
    """Asks for as many cases as the command line says, and tells what came of them."""
    wanted, done, seed = int(sys.argv[1]), 0, 0
    while done < wanted:
        verdict = asyncio.run(fuzz(100, seed))
        done, seed = done + verdict.cases, seed + 1
        print(f"{done} cases")  # noqa: T201 - a command's progress
        if verdict.exit_code or not verdict.cases:
            print(verdict.report)  # noqa: T201 - what was found
            sys.exit(verdict.exit_code or 1)


if __name__ == "__main__":
    main()
