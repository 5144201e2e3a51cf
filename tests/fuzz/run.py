"""Runs the coverage-guided fuzzer: `python -m tests.fuzz.run sse|answers [options of libFuzzer]`.

New inputs that reach new code are added to the corpus in the folder named last; an input that
breaks a check is written beside it and the run ends with its traceback.
"""

import importlib
import sys
from typing import Any

# no types come with it
atheris: Any = importlib.import_module("atheris")

with atheris.instrument_imports(include=["orchestrator.runners", "httpx_sse"]):
    from tests.fuzz.targets import check_answer, check_sse

TARGETS = {"sse": check_sse, "answers": check_answer}


def main() -> None:
    """Fuzzes one target until its time is up or a check fails."""
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
