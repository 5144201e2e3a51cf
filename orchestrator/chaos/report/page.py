"""The verdict as one HTML file that needs nothing else: a timeline, tables, and what went wrong."""

from collections.abc import Sequence
from html import escape

from orchestrator.chaos.journal import Event
from orchestrator.chaos.report.lanes import Picture, Span, picture_of
from orchestrator.chaos.report.terminal import granted, headline, milliseconds
from orchestrator.chaos.verdict.judgement import Outcome, Verdict

WIDTH, LABEL, RIGHT = 1180, 190, 20
ROW, GAP, CURVE = 18, 4, 44
PHASE_ROWS, LETTER = (10, 20), 6
"""Where the names of the phases stand, so that two of them never cover each other."""
TICKS = 10
SHOWN_REQUESTS = 20
SHOWN_EVENTS = 200
COLOURS = {
    "success": "#3b8f5a",
    "failure": "#c8503c",
    "none": "#8d99a6",
    "worker died": "#7a2e8e",
    "open": "#d9a441",
    "ready": "#3b8f5a",
    "serving": "#3b8f5a",
    "closed": "#3b8f5a",
    "not ready": "#c8503c",
    "poisoned": "#7a2e8e",
    "open circuit": "#c8503c",
    "half-open": "#d9a441",
}
LEGEND = (
    ("success", "attempt succeeded"),
    ("failure", "attempt failed"),
    ("none", "no verdict (cancelled, refused)"),
    ("worker died", "its worker died"),
)
STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:24px auto;max-width:1220px;color:#1d2733}
h1{font-size:20px;margin:0 0 4px}h2{font-size:15px;margin:26px 0 6px}
.verdict{padding:10px 14px;border-radius:6px;color:#fff;font-weight:600}
.passed{background:#2f7d4c}.failed{background:#b03a2a}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:3px 8px;
border-bottom:1px solid #dde3e9;vertical-align:top}th{font-weight:600;color:#52606d}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto;font:11px system-ui,sans-serif}
pre{background:#f4f6f8;padding:10px;overflow:auto;font-size:12px}
.legend span{display:inline-block;margin-right:18px}.legend i{display:inline-block;width:12px;
height:12px;margin-right:5px;vertical-align:-2px}
details{margin:8px 0}summary{cursor:pointer}
@media screen and (max-width:1260px){body{margin:24px}}
@media screen and (max-width:700px){body{margin:12px}table{display:block;overflow-x:auto}}
@media print{body{margin:0;max-width:none}details{break-inside:avoid}svg{break-inside:avoid}
tr{break-inside:avoid}h2,tr:first-child{break-after:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


def as_html(verdict: Verdict, events: Sequence[Event], replay: str) -> str:
    """The page.

    Args:
        verdict: Of the journal.
        events: The journal.
        replay: The command that runs it again.
    """
    ordered = sorted(events, key=lambda event: event.t)
    violating = _violating(verdict)
    picture = picture_of(ordered, frozenset(violating))
    passed = "passed" if verdict.outcome is Outcome.PASSED else "failed"
    parts = [
        f"<h1>Chaos: {escape(verdict.scenario)}</h1>",
        f"<p class='verdict {passed}'>{escape(headline(verdict))}</p>",
        _lines("Left on the machine", verdict.left),
        _lines("Why nothing is proven", verdict.doubts),
        _lines("Expectations that were missed", verdict.missed),
        _lines("Granted", [granted(verdict)] if verdict.slack else []),
        "<h2>Timeline</h2>",
        _legend(picture),
        timeline(picture),
        _phases(verdict),
        _faults(verdict),
        _invariants(verdict),
        _requests(verdict, ordered, violating),
        f"<h2>Run it again</h2><pre>{escape(replay)}</pre>",
        _lines("With", [f"{name} {told}" for name, told in verdict.provenance.items()]),
    ]
    title = escape(f"{verdict.scenario}: {verdict.in_words}")
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{title}</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _violating(verdict: Verdict) -> list[str]:
    names = [found.request for found in verdict.violations if found.request is not None]
    return list(dict.fromkeys(names))[:SHOWN_REQUESTS]


def timeline(picture: Picture) -> str:
    """The drawing, as inline SVG."""
    drawing = _Drawing(picture)
    for name, points in picture.queues.items():
        drawing.curve(f"{name} queue", points)
    for lane, spans in picture.states.items():
        drawing.lane(lane, spans)
    for slot, spans in picture.slots.items():
        drawing.lane(slot, spans)
    return drawing.svg()


class _Drawing:
    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        # the start of the gateway is no part of the run
        self._begin = picture.phases[0].begin if picture.phases else 0.0
        self._end = max(picture.seconds, self._begin + 0.001)
        self._parts: list[str] = []
        self._y = ROW * 2 + GAP
        self._top = self._y

    def lane(self, name: str, spans: Sequence[Span]) -> None:
        """One row of bars."""
        self._label(name, self._y + ROW - 6)
        for span in spans:
            left, width = self._x(span.begin), max(1.0, self._x(span.end) - self._x(span.begin))
            # a breaker that is open is trouble, an attempt that is open only hasn't ended
            word = "open circuit" if "breaker" in name and span.word == "open" else span.word
            colour = COLOURS.get(word, "#8d99a6")
            about = f"{span.about or span.word}, {span.begin:.3f} to {span.end:.3f} s"
            self._parts.append(
                f"<rect x='{left:.1f}' y='{self._y}' width='{width:.1f}' height='{ROW - 4}'"
                f" rx='1.5' fill='{colour}' fill-opacity='.85'>"
                f"<title>{escape(about)}</title></rect>"
            )
        self._y += ROW

    def curve(self, name: str, points: Sequence[tuple[float, float]]) -> None:
        """One row with a step curve."""
        most = max((depth for _, depth in points), default=0.0)
        self._label(f"{name} (max {most:g})", self._y + CURVE / 2 + 4)
        floor = self._y + CURVE - 4
        steps = [f"M{self._x(self._begin):.1f},{floor}"]
        level = float(floor)
        for at, depth in points:
            steps.append(f"L{self._x(at):.1f},{level:.1f}")
            level = floor - (CURVE - 8) * depth / max(most, 1.0)
            steps.append(f"L{self._x(at):.1f},{level:.1f}")
        steps.append(f"L{self._x(self._end):.1f},{level:.1f}")
        self._parts.append(
            f"<path d='{' '.join(steps)}' fill='none' stroke='#2b6cb0' stroke-width='1.2'/>"
        )
        self._y += CURVE

    def svg(self) -> str:
        """All of it, with the bands of faults behind and the axis below."""
        height = self._y + 30
        return (
            f"<svg viewBox='0 0 {WIDTH} {height}' role='img' aria-label='timeline of the run'>"
            f"{''.join(self._bands())}{''.join(self._parts)}{''.join(self._axis())}</svg>"
        )

    def _bands(self) -> list[str]:
        found: list[str] = []
        taken = dict.fromkeys(PHASE_ROWS, 0.0)
        for span in self._picture.phases:
            x = self._x(span.begin)
            width = LETTER * len(span.word) + 6
            left = min(x + 3, WIDTH - width)  # what ends beside the edge must not be cut off
            row = next((row for row in PHASE_ROWS if taken[row] <= left), PHASE_ROWS[0])
            taken[row] = left + width
            found.append(
                f"<line x1='{x:.1f}' x2='{x:.1f}' y1='4' y2='{self._y}' stroke='#9fb0c0'"
                f" stroke-dasharray='3 3'/><text x='{left:.1f}' y='{row}' fill='#52606d'>"
                f"{escape(span.word)}</text>"
            )
        for number, span in enumerate(self._picture.faults):
            x, width = self._x(span.begin), max(2.0, self._x(span.end) - self._x(span.begin))
            row = 22 + 10 * (number % 2)
            found.append(
                f"<rect x='{x:.1f}' y='{self._top - 8}' width='{width:.1f}'"
                f" height='{self._y - self._top + 8}' fill='#f2b8ae' fill-opacity='.38'>"
                f"<title>{escape(span.about)}</title></rect>"
                f"<text x='{x + 2:.1f}' y='{row + 6}' fill='#b03a2a'>{escape(span.word)}</text>"
            )
        return found

    def _axis(self) -> list[str]:
        found: list[str] = []
        for tick in range(TICKS + 1):
            at = self._begin + (self._end - self._begin) * tick / TICKS
            x = self._x(at)
            found.append(
                f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{self._y}' y2='{self._y + 5}'"
                f" stroke='#52606d'/><text x='{x:.1f}' y='{self._y + 18}' text-anchor='middle'"
                f" fill='#52606d'>{at:.1f} s</text>"
            )
        return found

    def _label(self, name: str, y: float) -> None:
        self._parts.append(
            f"<text x='{LABEL - 8}' y='{y:.0f}' text-anchor='end' fill='#1d2733'>"
            f"{escape(name)}</text>"
        )

    def _x(self, at: float) -> float:
        share = (min(max(at, self._begin), self._end) - self._begin) / (self._end - self._begin)
        return LABEL + (WIDTH - LABEL - RIGHT) * share


def _legend(picture: Picture) -> str:
    marks = "".join(
        f"<span><i style='background:{COLOURS[word]}'></i>{escape(text)}</span>"
        for word, text in LEGEND
    )
    bands = "<span><i style='background:#f2b8ae'></i>a fault is in effect</span>"
    hidden = f"<span>{picture.hidden} attempts are not drawn</span>" if picture.hidden else ""
    return f"<p class='legend'>{marks}{bands}{hidden}</p>"


def _lines(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>{escape(title)}</h2><ul>{items}</ul>"


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table; all columns but the first `words` and the last hold numbers."""

    def cells(tag: str, row: Sequence[str]) -> str:
        last = len(row) - 1
        return "".join(
            f"<{tag}{' class=n' if words <= place < last else ''}>{escape(cell)}</{tag}>"
            for place, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<h2>{escape(title)}</h2><table><tr>{cells('th', head)}</tr>{body}</table>"


def _phases(verdict: Verdict) -> str:
    head = ("phase", "requests", "done", "cancelled", "rejected", "ttft p50 ms", "p95", "errors")
    rows = [
        (
            name,
            str(found.requests),
            str(found.done),
            str(found.canceled),
            str(found.rejected),
            milliseconds(found.ttft(0.5)),
            milliseconds(found.ttft(0.95)),
            ", ".join(f"{code} {count}" for code, count in found.errors.most_common()) or "-",
        )
        for name, found in verdict.phases.items()
    ]
    return _table("Requests", head, rows)


def _faults(verdict: Verdict) -> str:
    head = ("fault", "landed", "at s", "met", "detected ms", "recovered ms", "evidence")
    rows = [
        (
            f"{fault.number} {fault.what}",
            str(fault.landed),
            "-" if fault.landed_at is None else f"{fault.landed_at:.2f}",
            str(fault.exposed),
            milliseconds(fault.detected_after),
            milliseconds(fault.recovered_after),
            fault.evidence or "did not land",
        )
        for fault in verdict.faults
    ]
    return _table("Faults", head, rows) if rows else ""


def _invariants(verdict: Verdict) -> str:
    rows: list[tuple[str, ...]] = []
    for name, checked in verdict.checked.items():
        mine = [found for found in verdict.violations if found.id == name]
        first = f"{mine[0].request or '-'}: {mine[0].text}" if mine else "held"
        rows.append((name, str(checked), str(len(mine)), first))
    return _table("Invariants", ("invariant", "checked", "violations", "first"), rows)


def _requests(verdict: Verdict, events: Sequence[Event], names: Sequence[str]) -> str:
    """Each request that shows a violation, with all that is known of it."""
    found: list[str] = []
    for name in names:
        texts = [one.id + ": " + one.text for one in verdict.violations if one.request == name]
        own = [event for event in events if event.request == name][:SHOWN_EVENTS]
        lines = "\n".join(
            f"{event.t:10.6f}  {event.kind:15} {event.worker or '':12} "
            + " ".join(f"{key}={value}" for key, value in event.value.items())
            for event in own
        )
        found.append(
            f"<details open><summary><b>{escape(name)}</b> {escape('; '.join(texts))}</summary>"
            f"<pre>{escape(lines)}</pre></details>"
        )
    return "<h2>Requests that show a violation</h2>" + "".join(found) if found else ""
