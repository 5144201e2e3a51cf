"""Two attempts at one answer: the first token decides, and only the winner ever writes.

Each contender has a lane, a channel of its own to whoever runs the attempt. Until the first token
nothing passes from a lane into the request's channel. The contender who brings it becomes the
winner in that very step: its epoch gets the pen, and every other lane ends, so that its attempt is
canceled as if its caller had gone away. What ends the request ends all lanes.
"""

from collections.abc import Callable, Sequence

from typing_extensions import override

from orchestrator.channel import Channel
from orchestrator.errors import RequestCanceledError
from orchestrator.events import Ending, Failed, TokenChunk
from orchestrator.routing.deployment import Deployment


class Race:
    """The contenders for one request's channel.

    Args:
        channel: The request's own.
        on_won: Called with the winner's lane at its first token.
    """

    def __init__(self, channel: Channel, on_won: "Callable[[Lane], None]") -> None:
        self.channel = channel
        self.lanes: list[Lane] = []
        """Those that still run."""
        self.winner: Lane | None = None
        self._on_won = on_won

    def __repr__(self) -> str:
        return f"<Race of {len(self.lanes)}, {'won' if self.winner else 'open'}>"

    def enter(self, deployment: Deployment, *, hedge: bool = False) -> "Lane":
        """One more contender; `hedge` if another one is running."""
        lane = Lane(self, deployment, hedge=hedge)
        self.lanes.append(lane)
        return lane

    def leave(self, lane: Channel) -> None:
        """A contender gave up; what it wrote stays the request's business."""
        self.lanes = [one for one in self.lanes if one is not lane]
        if self.winner is lane:
            self.winner = None

    def is_won_by(self, lane: "Lane", epoch: int) -> bool:
        """Whether that lane may write; the first one that asks wins."""
        if self.winner is None and lane in self.lanes:
            self.winner = lane
            others, self.lanes = [one for one in self.lanes if one is not lane], [lane]
            self.channel.begin(epoch)
            for other in others:
                other.lose()
            self._on_won(lane)
        return self.winner is lane


class Lane(Channel):
    """One contender's end of a request's channel.

    Args:
        race: Which it takes part in.
        deployment: Who was asked.
        hedge: Whether another one was running already.
    """

    __slots__ = ("_race", "deployment", "hedge")

    def __init__(self, race: Race, deployment: Deployment, *, hedge: bool) -> None:
        super().__init__(held=race.channel.held)
        self._race = race
        self.deployment = deployment
        self.hedge = hedge
        race.channel.watch(self._tell)

    @property
    def epoch(self) -> int:
        """The number of the contender's attempt; 0 if none is running."""
        return self._epoch

    @property
    @override
    def ending(self) -> Ending | None:
        return self._ending or self._race.channel.ending

    @property
    @override
    def committed(self) -> bool:
        return self._race.winner is self and self._race.channel.committed

    @override
    def watch(self, callback: Callable[[], None]) -> None:
        if self.ending is None:
            self._watchers.append(callback)
        else:
            callback()

    @override
    def begin(self, epoch: int) -> None:
        self._epoch = epoch
        if self._race.winner is self:
            self._race.channel.begin(epoch)

    @override
    def send(self, chunk: TokenChunk, epoch: int) -> bool:
        if self._may_write(epoch):
            return self._race.channel.send(chunk, epoch)
        return False

    @override
    def end(self, ending: Ending, epoch: int | None = None) -> bool:
        if epoch is None or self._may_write(epoch):
            return self._race.channel.end(ending, epoch)
        return False

    @override
    def retract(self) -> bool:
        if self.ending is not None:
            return False
        if self._race.winner is self:
            if not self._race.channel.retract():
                return False
            self._race.winner = None
        self._epoch = 0
        return True

    @override
    def suspend(self) -> Sequence[TokenChunk]:
        self._epoch = 0
        return self._race.channel.suspend()

    def lose(self) -> None:
        """Another one was faster: the attempt is canceled."""
        self._ending = Failed(RequestCanceledError("another deployment was faster"))
        self._tell()

    def _may_write(self, epoch: int) -> bool:
        if self._ending is None and epoch == self._epoch and self._race.is_won_by(self, epoch):
            return True
        self._late()
        return False

    def _tell(self) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher()
