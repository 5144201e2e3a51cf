"""From the configuration to what is kept of answers."""

import asyncio
import time

from orchestrator.config import Config
from orchestrator.gateway.repeats.memory import Memory
from orchestrator.gateway.repeats.repeats import Cache, Enter, Repeats, Submit
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
        store = None
        if section.path is not None:
            store = AnswerStore(
                section.path,
                most=section.max_bytes,
                ttl=section.ttl,
                clock=time.time,  # noqa: TID251 - what is kept in a file is as old as the calendar says
            )
        cache = Cache(
            memory=Memory(most=section.max_bytes, ttl=section.ttl, clock=clock),
            store=store,
            every=section.requests == "all",
            most=section.max_bytes // SHARE_OF_ONE,
        )
    kept = None
    if window.window:
        kept = Memory(most=window.max_bytes, ttl=window.window, clock=clock)
    return Repeats(
        submit, enter=enter, kept=kept, most=window.max_bytes // SHARE_OF_ONE, cache=cache
    )
