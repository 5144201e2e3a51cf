"""From the configuration to what is kept of answers."""

import asyncio
import time
from pathlib import Path

from orchestrator.config import Config
from orchestrator.gateway.repeats.memory import Memory
from orchestrator.gateway.repeats.repeats import Cache, Enter, Kept, Repeats, Submit
from orchestrator.gateway.repeats.store import AnswerStore

SHARE_OF_ONE = 8
"""One answer takes an eighth of the room at most, or few would be kept."""


def make_repeats(config: Config, submit: Submit, enter: Enter) -> Repeats | None:
    """Makes what keeps answers; None if nothing is to be kept. Called on the loop.

    Args:
        config: Its sections `idempotency` and `cache`.
        submit: Sends a request on its way.
        enter: Enters those that are not sent, for they get another one's answer.
    """
    clock = asyncio.get_running_loop().time
    window, section = config.idempotency, config.cache
    if window.window == 0 and section is None:
        return None
    cache = None
    if section is not None:
        cache = Cache(
            memory=Memory(most=section.max_bytes, ttl=section.ttl, clock=clock),
            store=_store(section.path, section.max_bytes, section.ttl),
            every=section.requests == "all",
            most=section.max_bytes // SHARE_OF_ONE,
        )
    kept = None
    if window.window:
        kept = Kept(
            memory=Memory(most=window.max_bytes, ttl=window.window, clock=clock),
            store=_store(window.path, window.max_bytes, window.window),
            most=window.max_bytes // SHARE_OF_ONE,
        )
    return Repeats(submit, enter=enter, kept=kept, cache=cache)


def _store(path: Path | None, most: int, ttl: float) -> AnswerStore | None:
    if path is None:
        return None
    # what is kept in a file is as old as the calendar says
    return AnswerStore(path, most=most, ttl=ttl, clock=time.time)  # noqa: TID251 - see above
