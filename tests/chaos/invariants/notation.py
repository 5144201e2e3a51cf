"""A journal as text, so that a test shows its run at one glance.

One event a line: time, kind, then in any order a request (`r1`), `@worker`, `#epoch` and
`key=value`. A value is JSON if it can be, else text; `~` in it stands for a space.
"""

import json

from orchestrator.chaos.journal import Event, Kind, Scalar

SETTINGS = (
    "0 deployment slots=2 queue_capacity=2 permits_burst=2 permits_per_second=1"
    " max_restarts=2 restart_window=10 open_for=1 max_open_for=4"
)


def sketch(text: str, *, settings: str = SETTINGS) -> list[Event]:
    """Reads a journal; that of a deployment without a name comes first."""
    return [_event(line) for line in (settings + "\n" + text).splitlines() if line.strip()]


def _event(line: str) -> Event:
    time, kind, *words = line.split()
    request = worker = epoch = None
    value: dict[str, Scalar] = {}
    for word in words:
        if word.startswith("@"):
            worker = word[1:]
        elif word.startswith("#"):
            epoch = int(word[1:])
        elif "=" in word:
            key, raw = word.split("=", 1)
            value[key] = _scalar(raw)
        else:
            request = word
    return Event(float(time), Kind(kind), request, None, worker, epoch, value)


def _scalar(raw: str) -> Scalar:
    try:
        return json.loads(raw)
    except json.JSONDecodeError:
        return raw.replace("~", " ")
