"""`orchestrator serve`: from a configuration to a running gateway, and to its end.

Start: bind the address -> start every deployment -> listen (requests queue while models load, the
probes answer) -> tell what serves. SIGHUP reads the configuration anew, see
`reload`. Stop, on SIGTERM or SIGINT:

    1. nothing new is taken: 503 with `Connection: close`, no route is ready
    2. what runs may finish, for `server.drain` seconds or until a second signal
    3. what is left gets `EngineDrainingError` as its ending, model hosts and connections are closed
    4. the last bytes are written, the listener closes, the process exits with 0
"""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import uvloop

from orchestrator.config import Config
from orchestrator.gateway.app import Gateway
from orchestrator.gateway.connection import ConnectionLimits, room_for
from orchestrator.gateway.entrance import make_door, tell_budgets
from orchestrator.gateway.explain import EXPLAINED
from orchestrator.gateway.listener import Listener, bind
from orchestrator.gateway.reload import SIGNAL, Reloader
from orchestrator.gateway.repeats.making import make_repeats
from orchestrator.gateway.screen import Screen
from orchestrator.plan import plan_accounts, plan_deployments
from orchestrator.points import Points
from orchestrator.wiring import System

logger = logging.getLogger(__name__)

COLLECT_AFTER = (5_000, 1, 200)
"""Objects made and not freed before the youngest are looked at, Python's 700 being two requests';
how often until the middle ones are, and then the old ones. Large events don't need it, for they are
told in small pieces; whole answers do, which are held until they end: with 20,000 chunks of
logprobs held the longest pause is 38 ms, with Python's ten and ten 100, and a sixth fewer chunks
come through in a second. Where nothing is held there is no difference to measure."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


Beside = Callable[[System], AbstractAsyncContextManager[None]]
"""What goes on beside a system while it runs; entered before the start, left after the end."""


def serve(
    config: Config,
    *,
    reread: Callable[[], Config],
    points: Points | None = None,
    beside: Beside | None = None,
) -> None:
    """Runs the gateway until a signal stops it.

    Args:
        config: What to serve.
        reread: Reads it again, for a reload.
        points: Told of every passage of a point, if anybody looks on.
        beside: What else goes on, if anything does.

    Raises:
        BindError: The address can't be used; nothing was started.
        ConfigError: A runner can't be made from the configuration.
    """
    with (
        bind(config.server.host, config.server.port) as sock,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_serve(config, reread, sock, points, beside))


class _Stop:
    """The signals: the first one asks for a drain, the second one ends it."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()

    def hear(self) -> None:
        (self.hurried if self.asked.is_set() else self.asked).set()


async def _serve(
    config: Config,
    reread: Callable[[], Config],
    sock: socket.socket,
    points: Points | None,
    beside: Beside | None,
) -> None:
    loop = asyncio.get_running_loop()
    screen = Screen(loop.time)
    accounts = plan_accounts(config)
    door = make_door(config)
    tell_budgets(door, accounts)
    if door is None or not door.asks:
        screen.line("warning: no API key is asked for, see callers in the configuration")
    plans = plan_deployments(config, screen.progress)
    system = System(*plans, points=points, accounts=accounts)
    reloader = Reloader(config, reread, system, accounts, screen.progress, door)
    repeats = make_repeats(config, system.router.submit, system.router.enter_repeat)
    gateway = Gateway(
        system,
        max_body=config.server.max_body,
        access_log=config.server.access_log,
        keep_alive=config.server.keep_alive,
        max_bodies=config.server.max_bodies,
        resume_window=config.server.resume_window,
        explained=EXPLAINED[config.server.explain],
        resume_memory=config.server.resume_memory,
        door=door,
        repeats=repeats,
        ledger=config.ledger.path if config.ledger else None,
        reload=reloader.reload,
    )
    reloader.on_change = gateway.forget_document
    listener = Listener(
        gateway,
        sock,
        ConnectionLimits(
            head=config.server.head_timeout,
            body=config.server.body_timeout,
            idle=config.server.idle_timeout,
            connections=room_for(config.server.max_connections),
        ),
    )
    stop = _Stop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.hear)
    loop.add_signal_handler(SIGNAL, reloader.hear)
    # all that is there now stays: a collector that looks at it again and again costs a tenth of the
    # throughput, and pauses all streams for 50 ms
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    company = contextlib.AsyncExitStack()
    if beside is not None:
        await company.enter_async_context(beside(system))
    system.start()
    serving = asyncio.create_task(listener.run_until_closed())
    announcing = asyncio.create_task(_announce(config, system, listener, screen))
    stopping = asyncio.create_task(stop.asked.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        await reloader.aclose()
        announcing.cancel()  # what ends before it could serve has nothing to tell
        gateway.drain()
        running = sum(health.inflight for health in system.health())
        screen.line(f"stopping: {running} requests may go on for {config.server.drain:g} s")
        await _drain(system, config.server.drain, stop)
    finally:
        announcing.cancel()
        stopping.cancel()
        await reloader.aclose()
        await system.aclose()
        await company.aclose()
        listener.close()
        await serving
        if repeats is not None:
            await repeats.aclose()
        for number in (*STOP_SIGNALS, SIGNAL):
            loop.remove_signal_handler(number)
    screen.line("stopped")


async def _announce(config: Config, system: System, listener: Listener, screen: Screen) -> None:
    await listener.listening.wait()
    url = reachable_url(config.server.host, listener.port)
    screen.line(f"listening on {url}; requests wait until a model is loaded")
    await system.settled()
    screen.summary(url, config.all_routes, system.health())


async def _drain(system: System, limit: float, stop: _Stop) -> None:
    draining = asyncio.create_task(system.drain(limit))
    hurrying = asyncio.create_task(stop.hurried.wait())
    await asyncio.wait({draining, hurrying}, return_when=asyncio.FIRST_COMPLETED)
    if not draining.done():
        logger.warning("a second signal: ending what is left")
    hurrying.cancel()
    draining.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await draining


def reachable_url(host: str, port: int) -> str:
    """The address for a caller on this machine, whatever is listened on."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
