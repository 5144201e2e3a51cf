"""Every fault there is: what it takes, where it runs, how it is undone, what shows that it landed.

A fault without an undo doesn't stand here, and so can't stand in a scenario.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Target = Literal["worker", "provider", "client", "gateway"]
World = Literal["sim", "live"]
BOTH: frozenset[World] = frozenset(("sim", "live"))
SOME = frozenset({"toxicity", "for"})
REPEATED = frozenset({"every", "times"})
PASSAGE = frozenset({"at_point", "nth"})
UNITS: Mapping[str, str] = MappingProxyType(
    {
        "every": "s",
        "for": "s",
        "interval": "s",
        "jitter": "s",
        "retry_after": "s",
        "seconds": "s",
        "size": " bytes",
        "after_tokens": " tokens",
        "n": " of them",
    }
)
"""In what a key's default is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """One entry of the catalogue."""

    target: Target
    name: str
    about: str
    takes: frozenset[str] = frozenset()
    """Keys of a scenario's fault that mean something here, besides when and whom."""
    undo: str
    evidence: str
    """What shows that it landed."""
    stresses: tuple[str, ...]
    """Ids of invariants."""
    worlds: frozenset[World] = BOTH

    @property
    def key(self) -> tuple[Target, str]:
        """What names it."""
        return self.target, self.name


_ENDED = "the pidfd became readable"
_SERVED = "the provider's place counted it"
_RESTART = "the gateway starts the host anew"
_OFF = "the toxic is taken off"
_LEFT = "the load goes on without"


def _worker(name: str, about: str, *takes: str, undo: str, evidence: str) -> FaultKind:
    return FaultKind(
        target="worker",
        name=name,
        about=about,
        takes=REPEATED | PASSAGE | {"after_tokens"} | set(takes),
        undo=undo,
        evidence=evidence,
        stresses=("I1", "I3", "I4", "I14", "I19"),
    )


def _provider(name: str, about: str, *takes: str) -> FaultKind:
    return FaultKind(
        target="provider",
        name=name,
        about=about,
        takes=SOME | REPEATED | set(takes),
        undo=_OFF,
        evidence=_SERVED,
        stresses=("I2", "I5", "I10", "I12"),
    )


def _client(name: str, about: str, *takes: str) -> FaultKind:
    return FaultKind(
        target="client",
        name=name,
        about=about,
        takes=SOME | set(takes),
        undo=_LEFT,
        evidence="the client's own event and the gateway's ending of the same request",
        stresses=("I4", "I7", "I8", "I17"),
    )


def _gateway(
    name: str,
    about: str,
    *takes: str,
    undo: str,
    evidence: str,
    invariants: tuple[str, ...],
) -> FaultKind:
    return FaultKind(
        target="gateway",
        name=name,
        about=about,
        takes=PASSAGE | set(takes),
        undo=undo,
        evidence=evidence,
        stresses=invariants,
    )


_ALL = (
    _worker("crash", "SIGKILL to the model host", undo=_RESTART, evidence=_ENDED),
    _worker("segv", "SIGSEGV to the model host", undo=_RESTART, evidence=_ENDED),
    _worker("exit", "SIGTERM to the model host", undo=_RESTART, evidence=_ENDED),
    _worker("stop", "SIGSTOP for a while", "for", undo="SIGCONT", evidence="state T in /proc"),
    _worker(
        "slow",
        "SIGSTOP and SIGCONT in turns; `duty` is the share of time that it runs",
        *("for", "duty"),
        undo="SIGCONT",
        evidence="state T in /proc, again and again, for the measured share of the time",
    ),
    _worker(
        "wedge",
        "the main thread stands still, the process lives",
        undo="the gateway kills and restarts the host",
        evidence="the host was killed for lack of progress",
    ),
    _worker(
        "oom",
        "no further memory (RLIMIT_AS); `size` is the headroom",
        "size",
        undo="the limit is restored",
        evidence=_ENDED,
    ),
    _worker(
        "swizzle",
        "hosts are stopped one by one and go on in another order",
        *("for", "interval"),
        undo="SIGCONT",
        evidence="state T in /proc",
    ),
    _provider("refused", "the connection is reset, whatever is asked", "where"),
    _provider("status", "an HTTP error", "code", "error", "retry_after", "where"),
    _provider("latency", "the answer begins later", "seconds", "jitter", "where"),
    _provider("stall", "silence within the stream", "after_tokens"),
    _provider("comments_only", "keep-alive comments and nothing else", "where"),
    _provider("header_then_hang", "headers, then silence", "where"),
    _provider("reply_lost", "the request is served, the answer is lost"),
    _provider("cut", "the stream breaks off", "after_tokens", "how"),
    _provider("dup_tokens", "one event comes twice", "after_tokens"),
    _provider("error_event", "an error event within the stream", "after_tokens"),
    _provider("bad_json", "an event that is no JSON", "after_tokens"),
    _provider("huge_event", "an event of that size", "after_tokens", "size"),
    _provider("slicer", "bytes in pieces of that size", "size"),
    _provider("bandwidth", "so many bytes a second", "size"),
    _client("cancel", "the caller closes politely", "after_tokens"),
    _client("rst", "the caller resets the connection", "after_tokens"),
    _client("slow_reader", "the caller reads that many bytes a second", "size"),
    _client("never_reads", "the caller reads nothing until the end"),
    _client("burst", "so many requests at once", "n"),
    _gateway(
        "block",
        "the event loop does nothing for a while",
        "seconds",
        undo="it goes on by itself",
        evidence="the gateway's answer to the command came that late",
        invariants=("I3", "I18"),
    ),
    _gateway(
        "poison",
        "a generation of the engine ends",
        "reason",
        undo="the next generation",
        evidence="the engine's own journal",
        invariants=("I6", "I6b", "I14"),
    ),
    _gateway(
        "kill_supervisor",
        "the supervisor actor dies",
        undo="none is needed: the run ends the gateway it started",
        evidence="the engine's own journal",
        invariants=("I6b", "I18"),
    ),
    _gateway(
        "sigterm",
        "drains and ends",
        undo="none is needed: the run ends the gateway it started",
        evidence="the process ended",
        invariants=("I1", "I20"),
    ),
    _gateway(
        "reload",
        "SIGHUP: every deployment is replaced by another one like it",
        *REPEATED,
        undo="none is needed: the new ones are like the old",
        evidence="the new deployments serve",
        invariants=("I1", "I4", "I31"),
    ),
    _gateway(
        "fd_exhaust",
        "it may open `n` more files (RLIMIT_NOFILE), and silent callers take those",
        *("for", "n"),
        undo="the limit is restored, the silent callers go",
        evidence="every number below the limit is in use, in /proc",
        invariants=("I1", "I4", "I22"),
    ),
)
CATALOGUE: Mapping[tuple[Target, str], FaultKind] = MappingProxyType(
    {kind.key: kind for kind in _ALL}
)
TARGETS: tuple[Target, ...] = ("worker", "provider", "client", "gateway")
