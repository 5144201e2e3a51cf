"""What the start of the gateway prints."""

import itertools
import json
import shlex

import pytest

from orchestrator.deployment import DeploymentHealth
from orchestrator.gateway.screen import Screen, curl_line
from orchestrator.gateway.serve import reachable_url

URL = "http://127.0.0.1:8080"


def make_health(name: str, *, ready: bool, reason: str | None = None) -> DeploymentHealth:
    return DeploymentHealth(
        name=name,
        model=f"model-of-{name}-" + "long" * 20,
        state="serving" if ready else "poisoned",
        ready=ready,
        live_slots=4 if ready else 0,
        slots=4,
        generation=1,
        breaker="closed",
        queued=0,
        inflight=0,
        reason=reason,
    )


def test_the_curl_line_survives_a_shell_whatever_the_name() -> None:
    words = shlex.split(curl_line(URL, 'it\'s/a "name"'))

    assert words[:3] == ["curl", "-N", f"{URL}/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == 'it\'s/a "name"'


def test_the_summary_tells_what_serves_and_why_the_rest_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    healths = [make_health("a", ready=True), make_health("b", ready=False, reason="no [memory]")]

    Screen(itertools.count().__next__).summary(URL, {"r": ["b", "a"], "b": ["b"]}, healths)

    printed = capsys.readouterr().out
    assert "b is poisoned: no [memory]" in printed
    assert "1 of 2 deployments ready" in printed
    assert "4/4" in printed
    assert f"model-of-a-{'long' * 20}" in printed
    assert '"model":"r"' in printed


def test_without_a_route_that_serves_no_curl_line_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    healths = [make_health("b", ready=False, reason="down")]

    Screen(itertools.count().__next__).summary(URL, {"b": ["b"]}, healths)

    assert "curl" not in capsys.readouterr().out


def test_progress_lines_carry_the_seconds_since_the_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Screen(iter([10.0, 12.5]).__next__).progress("m", "reading weights")

    assert capsys.readouterr().out == "[   2.5 s] m: reading weights\n"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:80"),  # noqa: S104 - shown, never bound
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("gateway.local", "http://gateway.local:80"),
    ],
)
def test_the_address_shown_can_be_reached_from_here(host: str, url: str) -> None:
    assert reachable_url(host, 80) == url
