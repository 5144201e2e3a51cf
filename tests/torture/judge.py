"""What must hold after a round, whatever was broken and whenever."""

import asyncio
from collections.abc import Sequence

from orchestrator.errors import OrchestratorError
from tests.torture.lab import ALIVE_SECONDS, PROMPTS, Lab
from tests.torture.outcome import Outcome, Reading
from tests.torture.record import Record
from tests.torture.target import DEATHS

SHORT = 6
"""Tokens of the answer that shows that the service is back."""
DEATH_SECONDS = 0.05
HANG_SLACK_SECONDS = 0.1
SIGNS = {
    "kill": "SIGKILL",
    "segv": "SIGSEGV",
    "stop": "missed its lease",
    "wedge": "missed its lease",
}
"""What the crash's text must say of each fault."""


async def judge(
    lab: Lab, outcome: Outcome, readings: Sequence[Reading], record: Record, prompt: str
) -> None:
    """Notes every broken promise, and every fault that didn't land, in the outcome.

    Args:
        lab: Whole again, by itself.
        outcome: Of the round.
        readings: All its streams, ended.
        record: Of the host that was broken; that of the one in its place is looked at too.
        prompt: What is asked next.
    """
    _judge_evidence(outcome)
    successor = lab.record()
    for reading in readings:
        _judge_stream(lab, outcome, reading, (record, successor))
    successor.close()
    _judge_times(outcome)
    await _judge_aftermath(lab, outcome, prompt)


def _judge_evidence(outcome: Outcome) -> None:
    sign = SIGNS[outcome.fault]
    if sign not in outcome.crash:
        outcome.violations.append(f"the crash says nothing of {sign}: {outcome.crash}")
    if outcome.fault == "stop" and not outcome.seen_stopped:
        outcome.violations.append("inconclusive: the host was never seen stopped")
    if outcome.fault == "wedge" and not outcome.beats:
        outcome.violations.append("inconclusive: the host's heart did not beat on")


def _judge_stream(lab: Lab, outcome: Outcome, reading: Reading, records: Sequence[Record]) -> None:
    reference = lab.references[reading.prompt]
    attempts = reading.stream.attempts
    name = f"stream {PROMPTS.index(reading.prompt)}"
    found = outcome.violations
    if len(reading.endings) != 1:
        found.append(f"{name} ended {len(reading.endings)} times")
    if not reference.text.startswith(reading.text):
        outcome.mismatches += 1
        found.append(f"{name} read {reading.text!r}, which is no beginning of the answer")
    outcome.retried += len(attempts) > 1
    if reading.error is not None:
        outcome.interrupted += 1
        found.append(f"{name} ended with {reading.error!r} after {reading.text!r}")
        return
    outcome.finished += 1
    usage = reading.stream.usage
    if reading.text != reference.text or usage is None:
        outcome.mismatches += 1
        found.append(f"{name} is finished but not whole: {reading.text!r}")
    elif usage.completion_tokens != reference.tokens:
        found.append(f"{name} counted {usage.completion_tokens} tokens")
    if len(attempts) > 1 and attempts[-1].resumed_after is not None:
        outcome.resumed += 1
        if len(attempts) == len(records) and (what := _out_of_bounds(reading, records)):
            outcome.mismatches += 1
            found.append(f"{name}: {what}")


def _out_of_bounds(reading: Reading, records: Sequence[Record]) -> str | None:
    """Looks whether the reader got of the first host what it sent, and of the next one the rest."""
    first, rest = (record.bounds(reading.prompt) for record in records)
    if first is None or rest is None:
        return "was read, but a host knows nothing of it"
    return lost_or_doubled(len(reading.text.encode()), first, rest)


def lost_or_doubled(whole: int, first: tuple[int, int], rest: tuple[int, int]) -> str | None:
    """Compares bytes that were read with those that a broken host and the next one sent.

    Args:
        whole: Bytes of a finished answer.
        first: Bytes that the broken host had sent, and had announced.
        rest: The same of the next one. It finished the answer, so it has sent what it announced,
            though it may not have written that down yet when the reader has all of it.
    """
    read = whole - rest[1]
    if not first[0] <= read <= first[1]:
        return f"{read} bytes read before the break, {first[0]} to {first[1]} sent"
    return None


def _judge_times(outcome: Outcome) -> None:
    if outcome.fault in DEATHS:
        # a loop that was not run couldn't look
        noticed = outcome.noticed_after - outcome.lateness
        if noticed > DEATH_SECONDS:
            outcome.violations.append(f"death noticed after {noticed * 1000:.0f} ms")
        return
    # a lease whose own timer is late looks once more, after as long again
    noticed = outcome.noticed_after - 2 * outcome.lateness
    if noticed > HANG_SLACK_SECONDS:
        outcome.violations.append(f"hang noticed {noticed * 1000:.0f} ms after its lease")


async def _judge_aftermath(lab: Lab, outcome: Outcome, prompt: str) -> None:
    """The next request is answered, and everything is back where it was."""
    async with asyncio.timeout(ALIVE_SECONDS):
        try:
            answer = await lab.ask(prompt, SHORT)
        except OrchestratorError as error:
            outcome.violations.append(f"the next request failed: {error!r}")
            return
    if not answer.text or not lab.references[prompt].text.startswith(answer.text):
        outcome.violations.append(f"the next answer is {answer.text!r}")
    outcome.violations += lab.at_rest()
