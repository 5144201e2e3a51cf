"""How much a run went without: the time for which its processes wanted a core and had none.

On a machine that others keep busy everything comes late, and what a scenario expects then says
nothing about the gateway. The kernel counts for each process how long it ran and how long it waited
to run (`/proc/PID/schedstat`, its main thread); the share of waiting is near 0 where there is room.
"""

from collections.abc import Iterable
from pathlib import Path


class Strain:
    """Of some processes, from now on.

    Args:
        pids: Which; one that has ended counts for nothing.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._begun = {pid: begun for pid in pids if (begun := _ran_and_waited(pid))}

    def __repr__(self) -> str:
        return f"<Strain of {len(self._begun)} processes, {self.share:.2f}>"

    @property
    def share(self) -> float:
        """Of the time in which they wanted to run, that in which they had to wait; 0 to 1.

        0 also on a system that doesn't tell.
        """
        ran = waited = 0
        for pid, begun in self._begun.items():
            now = _ran_and_waited(pid)
            if now is not None:
                ran, waited = ran + now[0] - begun[0], waited + now[1] - begun[1]
        return waited / (ran + waited) if ran + waited > 0 else 0.0


def _ran_and_waited(pid: int) -> tuple[int, int] | None:
    try:
        words = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
        return int(words[0]), int(words[1])
    except (OSError, IndexError, ValueError):
        return None
