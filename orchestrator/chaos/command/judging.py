"""`chaos check` and `chaos report`: the verdict of a journal, now or at any time."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.chaos.command.app import app, leave, mistakes_told, say, tell
from orchestrator.chaos.journal import Event, JournalError, read_journal
from orchestrator.chaos.report.document import as_json as json_of
from orchestrator.chaos.report.document import as_junit
from orchestrator.chaos.report.files import replay_line, write_all
from orchestrator.chaos.report.page import as_html
from orchestrator.chaos.report.terminal import console, show
from orchestrator.chaos.verdict.judgement import Verdict, judge_journal

JournalPath = Annotated[Path, typer.Argument(help="The journal.ndjson of a run.")]


def finish(journal: Path, *, as_json: bool) -> int:
    """Judges a run that is over, writes its reports, and returns its exit code.

    Raises:
        JournalError: The journal can't be read.
    """
    verdict, events = _judged(journal)
    _show(verdict, as_json=as_json)
    for path in write_all(verdict, events, journal.parent):
        tell(f"wrote {path}")
    if verdict.outcome:
        tell(f"again: {replay_line(verdict)}")
    return int(verdict.outcome)


@app.command()
def check(
    journal: JournalPath,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False,
) -> None:
    """Judges a journal again, from nothing but itself.

    [bold]Examples[/bold]

      orchestrator chaos check runs/20260101-120000-stalls/journal.ndjson
    """
    with mistakes_told():
        verdict, _ = _judged(journal)
        _show(verdict, as_json=as_json)
    leave(verdict.outcome)


@app.command()
def report(
    journal: JournalPath,
    *,
    html: Annotated[Path | None, typer.Option(help="One self-contained page.")] = None,
    json: Annotated[Path | None, typer.Option(help="Schema orchestrator/chaos/v1.")] = None,
    junit: Annotated[Path | None, typer.Option(help="For a CI server.")] = None,
) -> None:
    """Renders a journal's verdict; without an option, all three beside the journal.

    [bold]Examples[/bold]

      orchestrator chaos report runs/20260101-120000-stalls/journal.ndjson --html stalls.html
    """
    with mistakes_told():
        verdict, events = _judged(journal)
        if html is None and json is None and junit is None:
            for path in write_all(verdict, events, journal.parent):
                say(str(path))
            return
        for place, content in (
            (html, lambda: as_html(verdict, events, replay_line(verdict)).encode()),
            (json, lambda: json_of(verdict)),
            (junit, lambda: as_junit(verdict)),
        ):
            if place is not None:
                place.write_bytes(content())
                say(str(place))


def _judged(journal: Path) -> tuple[Verdict, list[Event]]:
    try:
        events = read_journal(journal)
    except OSError as error:
        raise JournalError(f"{journal}: {error.strerror}") from error
    return judge_journal(events), events


def _show(verdict: Verdict, *, as_json: bool) -> None:
    if as_json:
        say(json_of(verdict).decode().rstrip())
    else:
        show(verdict, console())
