"""Bugs of the channel and of the lease.

Their methods are grafted onto the base, so they may not call `super()`.
"""

from typing_extensions import override

from orchestrator.channel import Channel
from orchestrator.events import Ending, TokenChunk
from orchestrator.runners.lease import Lease


class RestartsInSight(Channel):
    """Takes back what was read."""

    @override
    def retract(self) -> bool:
        if self._ending is not None:
            return False
        self._epoch = 0
        self._chunks.clear()
        self._size_bytes = 0
        return True


class KeepsThePen(Channel):
    """An attempt that was taken back may go on writing."""

    @override
    def retract(self) -> bool:
        if self.delivered or self._ending is not None:
            return False
        self._chunks.clear()
        self._size_bytes = 0
        return True


class TakesLateResults(Channel):
    """Every attempt may write, old ones too."""

    @override
    def send(self, chunk: TokenChunk, epoch: int) -> bool:
        if self._ending is not None:
            self.late_events += 1
            return False
        self._chunks.append(chunk)
        if not self.held:
            self._wake()
        return True


class EndsTwice(Channel):
    """The last ending wins."""

    @override
    def end(self, ending: Ending, epoch: int | None = None) -> bool:
        if epoch is not None and epoch != self._epoch:
            return False
        self._ending = ending
        self._wake()
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher()
        return True


class EndsSilently(Channel):
    """Who waits isn't woken by the ending."""

    @override
    def end(self, ending: Ending, epoch: int | None = None) -> bool:
        if self._ending is not None or (epoch is not None and epoch != self._epoch):
            self.late_events += 1
            return False
        self._ending = ending
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher()
        return True


class JudgesByAge(Lease):
    """Progress doesn't renew the lease."""

    @override
    def progress(self) -> None:
        pass
