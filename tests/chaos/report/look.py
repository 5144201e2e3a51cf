"""Looks at reports in a real browser: every lane is drawn, and nothing sticks out or is cut off.

`make chaos-look RUNS='runs/...'` runs it and leaves `report.png` beside each journal; it exits with
1 if anything was wrong. It needs Chromium, which no other check does.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path

from orchestrator.chaos.journal import read_journal
from orchestrator.chaos.report.lanes import picture_of
from orchestrator.chaos.report.page import as_html
from orchestrator.chaos.verdict.judgement import judge_journal

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = (1280, 800, 500)
"""Of the window, in pixels; the browser makes none narrower than the last."""
SECONDS = 60
LOOK = """
<script>
const svg = document.querySelector('svg'), edge = svg.getBoundingClientRect();
const outside = [...svg.querySelectorAll('text, rect')].filter(part => {
  const box = part.getBoundingClientRect();
  return box.left < edge.left - 1 || box.right > edge.right + 1
    || box.top < edge.top - 1 || box.bottom > edge.bottom + 1;
}).map(part => part.textContent);
const lanes = svg.querySelectorAll('text[text-anchor=end]').length;
const wider = document.documentElement.scrollWidth - document.documentElement.clientWidth;
document.documentElement.dataset.seen = JSON.stringify({outside, lanes, wider});
</script>
"""


def faults_of(journal: Path, browser: str) -> list[str]:
    """What is wrong with the picture of a journal, a line each."""
    events = read_journal(journal)
    page = as_html(judge_journal(events), events, "")
    picture = picture_of(sorted(events, key=lambda event: event.t), frozenset())
    lanes = len(picture.queues) + len(picture.states) + len(picture.slots)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "report.html"
        place.write_text(page + LOOK, encoding="utf-8")
        start = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        start += [f"--user-data-dir={folder}/profile"]
        for width in WIDTHS:
            size = f"--window-size={width},1400"
            shown = run([*start, size, "--dump-dom", place.as_uri()])
            told = re.search(r'data-seen="([^"]*)"', shown)
            seen: object = json.loads(unescape(told[1])) if told else None
            if seen != {"outside": [], "lanes": lanes, "wider": 0}:
                wrong.append(f"{journal}, {width} pixels, {lanes} lanes wanted: {seen}")
        picture_place = journal.with_name("report.png").absolute()
        size = f"--window-size={WIDTHS[0]},1400"
        run([*start, size, f"--screenshot={picture_place}", place.as_uri()])
    return wrong


def run(command: list[str]) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=True
    ).stdout


def main() -> int:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("runs", nargs="+", type=Path, help="folders with a journal.ndjson")
    runs: list[Path] = reader.parse_args().runs
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.stderr.write("no browser: apt-get install chromium\n")
        return 2
    wrong = [line for one in runs for line in faults_of(one / "journal.ndjson", browser)]
    sys.stdout.write("".join(f"{line}\n" for line in wrong))
    sys.stdout.write(f"{len(runs)} reports at {len(WIDTHS)} widths, {len(wrong)} faults\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
