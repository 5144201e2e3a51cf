"""Reads the configuration anew while everything runs: on SIGHUP, or `POST /admin/reload`.

    1. the whole file is read and checked; whatever is wrong with it, nothing changes
    2. what only a start can take over must be as it was; else nothing changes either
    3. new deployments start beside the old ones and get ready; if one doesn't, nothing changes
    4. in one step whoever comes goes by the new routes, prices, budgets and callers
    5. whoever came before goes to the end as it was begun; what nobody needs any more is closed

So a deployment that is written otherwise is a new one under the old name, and until the last
request of before has ended both of them run.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from pydantic import BaseModel

from orchestrator import metrics
from orchestrator.accounts import Accounts
from orchestrator.callers.door import Door, Rules
from orchestrator.callers.keyring import Keyring
from orchestrator.config import Config
from orchestrator.errors import ConfigError, ReloadRefusedError
from orchestrator.gateway.entrance import changed_rules, tell_budgets
from orchestrator.gateway.keys import fault_of_budgets
from orchestrator.plan import OnProgress, plan_budgets, plan_deployments, plan_tariffs
from orchestrator.wiring import System

logger = logging.getLogger(__name__)

SIGNAL = signal.SIGHUP
TAKEN_OVER = frozenset({"deployments", "routes", "prices", "budgets", "callers"})
"""Sections that a reload takes over; all others need a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """What a reload has changed: names of deployments, and sections beside them."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    replaced: tuple[str, ...]
    sections: tuple[str, ...]

    @property
    def nothing(self) -> bool:
        """Whether all was as it is."""
        return not (self.added or self.removed or self.replaced or self.sections)

    def in_words(self) -> str:
        """One line for the log."""
        told = {
            "added": self.added,
            "removed": self.removed,
            "replaced": self.replaced,
            "otherwise": self.sections,
        }
        parts = [f"{what}: {', '.join(names)}" for what, names in told.items() if names]
        return "; ".join(parts) or "nothing has changed"


class Reloader:
    """Takes over what a configuration says now.

    Args:
        config: What runs.
        read: Reads the file again, as it was read at the start; it may take its time.
        system: What runs of it.
        accounts: Its books, if there are any.
        on_progress: Told what models do while they are loaded.
        door: Lets callers in; None lets everybody in.
    """

    def __init__(
        self,
        config: Config,
        read: Callable[[], Config],
        system: System,
        accounts: Accounts | None,
        on_progress: OnProgress,
        door: Door | None = None,
    ) -> None:
        self._config = config
        self._read = read
        self._system = system
        self._accounts = accounts
        self._on_progress = on_progress
        self._door = door
        self._turn = asyncio.Lock()
        self._asked: set[asyncio.Task[Reload]] = set()
        self._over = False
        self.on_change: Callable[[], None] = lambda: None
        """Told when other routes hold."""

    def hear(self) -> None:
        """A signal came: reloads, and tells the log what came of it."""
        self._begin().add_done_callback(_log)

    async def reload(self) -> Reload:
        """Reads the file and takes it over; whoever asks meanwhile has it read again afterwards.

        Raises:
            ReloadRefusedError: It can't be taken over, and nothing has changed.
        """
        return await asyncio.shield(self._begin())  # it goes on if whoever asked goes away

    async def aclose(self) -> None:
        """Reloads no more; what isn't done is given up."""
        self._over = True
        for task in self._asked:
            task.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)

    def _begin(self) -> "asyncio.Task[Reload]":
        task = asyncio.get_running_loop().create_task(self._counted())
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)
        return task

    async def _counted(self) -> Reload:
        try:
            async with self._turn:
                done = await self._reload()
        except ReloadRefusedError:
            metrics.RELOADS.labels("refused").inc()
            raise
        metrics.RELOADS.labels("unchanged" if done.nothing else "applied").inc()
        return done

    async def _reload(self) -> Reload:
        if self._over:
            raise ReloadRefusedError("the service is stopping")
        try:
            config = await asyncio.to_thread(self._read)
            keys = list(_changed_keys(self._config, config))
            if keys:
                raise ReloadRefusedError(f"only a restart can take over {', '.join(keys)}")
            await self._take_over(config)
        except ConfigError as error:
            raise ReloadRefusedError(error.message, param=error.param) from error
        before, self._config = self._config, config
        return _difference(before, config)

    async def _take_over(self, config: Config) -> None:
        running, known = self._system.deployments, self._config.deployments
        kept = {
            name: running[name].plan
            for name, section in config.deployments.items()
            if name in running and section == known.get(name)
        }
        plans, routes = plan_deployments(config, self._on_progress, kept)
        if self._accounts is None and (config.prices or config.budgets):
            raise ConfigError("prices and budgets need a restart: there were none at the start")
        rules = changed_rules(self._door, self._config, config)
        keyring = self._keyring_of(rules)
        fault_of = partial(fault_of_budgets, config)
        if keyring is not None:
            keyring.check(fault_of)
        fresh = await self._system.prepare(plans)
        if self._accounts is not None:
            self._accounts.change(plan_tariffs(config), plan_budgets(config))
        if self._door is not None and rules is not None:
            self._door.go_by(rules)
            tell_budgets(self._door, self._accounts)
        if keyring is not None:
            keyring.fault_of = fault_of
        self._system.change_over(fresh, plans, routes)
        self.on_change()

    def _keyring_of(self, changed: Rules | None) -> Keyring | None:
        """The keys that will be asked for."""
        rules = changed or (self._door and self._door.rules)
        return None if rules is None else rules.keyring


def _changed_keys(before: Config, after: Config) -> Iterator[str]:
    for section in Config.model_fields:
        one, other = getattr(before, section), getattr(after, section)
        if section in TAKEN_OVER or one == other:
            continue
        if not isinstance(one, BaseModel) or type(one) is not type(other):
            yield section
            continue
        for key in type(one).model_fields:
            if getattr(one, key) != getattr(other, key):
                yield f"{section}.{key}"


def _difference(before: Config, after: Config) -> Reload:
    old, new = before.deployments, after.deployments
    return Reload(
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        replaced=tuple(name for name in new if name in old and new[name] != old[name]),
        sections=tuple(
            section
            for section in sorted(TAKEN_OVER - {"deployments"})
            if getattr(before, section) != getattr(after, section)
        ),
    )


def _log(task: "asyncio.Task[Reload]") -> None:
    if task.cancelled():
        return
    error = task.exception()
    if error is None:
        logger.info("the configuration was read anew: %s", task.result().in_words())
    elif isinstance(error, ReloadRefusedError):
        logger.error("the configuration was not taken over, all goes on as before: %s", error)
    else:
        logger.error("the reload broke off", exc_info=error)
