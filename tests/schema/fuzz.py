"""Requests made from the published document, right and wrong ones, sent to a real gateway.

    python -m tests.schema.fuzz 10000

The gateway is the real one on a real socket; the provider behind it is scripted. Every answer must
have a status that the document names for that path and the shape that it names for that status, and
none of them a 5xx.
"""

import asyncio
import re
import sys
import tempfile
from dataclasses import dataclass

from orchestrator.events import Finished, FinishReason, Usage
from orchestrator.request import PriorityRequest, Work
from orchestrator.runners.remote.works import asked_for
from tests.fakes.scripted import Line, Stage
from tests.gateway.serving import serving

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance"
)
EXAMPLES = 200
"""For each operation in a round."""
ENDED = Finished(FinishReason.STOP, Usage(prompt_tokens=3, completion_tokens=2))


@dataclass(frozen=True)
class Verdict:
    """What came of it."""

    report: str

    @property
    def ok(self) -> bool:
        """Whether all requests passed; what breaks within the fuzzer itself is no request."""
        return self.cases > 0 and f"{self.cases} passed" in self.report.replace(",", "")

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


async def fuzz(examples: int, seed: int, phases: str) -> Verdict:
    """Sends about that many requests to each path.

    Args:
        examples: For each of the document's operations.
        seed: Of the generator.
        phases: Of schemathesis.
    """
    stage = Stage(answer, works=frozenset(Work))
    with tempfile.TemporaryDirectory() as folder:
        async with serving({"m": stage}, {"r": ["m"]}, access_log=False, slots=64) as served:
            output = await _run(served.url, folder, examples, seed, phases)
    return Verdict(output)


async def _run(url: str, folder: str, examples: int, seed: int, phases: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"),
        *("--checks", CHECKS, "--phases", phases, "--max-examples", str(examples)),
        *("--no-shrink", "--generation-database", "none"),
        *("--seed", str(seed), "--workers", "2", "--max-failures", "20"),
        *("--suppress-health-check", "all", "--no-color"),
        cwd=folder,  # it keeps what it has found where it runs
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return output.decode()


def main() -> None:
    """Asks for as many cases as the command line says, and tells what came of them."""
    wanted, done, seed = int(sys.argv[1]), 0, 0
    while done < wanted:
        verdict = asyncio.run(fuzz(EXAMPLES, seed, "fuzzing" if seed else "coverage"))
        done, seed = done + verdict.cases, seed + 1
        print(f"{done} cases", flush=True)  # noqa: T201 - a command's progress
        if not verdict.ok:
            sys.exit(verdict.report)


if __name__ == "__main__":
    main()
