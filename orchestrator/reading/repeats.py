"""What is kept of answers, for requests that come again."""

from pathlib import Path
from typing import Annotated, Literal

from orchestrator.reading.quantities import seconds, size
from orchestrator.reading.references import place_of_a_file
from orchestrator.reading.sections import Duration, Section


class Idempotency(Section):
    """Requests with the header Idempotency-Key: one that comes again gets the same answer."""

    window: Annotated[float, seconds(0.0)] = 600.0
    """How long an answer is kept under its key; 0s heeds no keys."""
    max_bytes: Annotated[int, size(2**16, 2**36)] = 16 * 2**20
    """Memory for all such answers, and as much of the file; the least used or oldest go first."""
    path: Annotated[Path, place_of_a_file()] | None = None
    """SQLite file for answers that outlive the process; null keeps them in memory alone."""


class Cache(Section):
    """Answers to requests in the same words, of each caller's own."""

    ttl: Duration = 600.0
    """How long an answer is good for."""
    max_bytes: Annotated[int, size(2**16, 2**40)] = 64 * 2**20
    """Memory for all answers, and as much of the file; the least used or oldest ones go first."""
    path: Annotated[Path, place_of_a_file()] | None = None
    """SQLite file for answers that outlive the process; null keeps them in memory alone."""
    requests: Literal["deterministic", "all"] = "deterministic"
    """deterministic: those with temperature 0 or a seed; all: any others, too."""
