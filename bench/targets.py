"""Who is measured: the provider itself, ours, and the peers that `make bench-peers` installed."""

import json
import subprocess
import time
import urllib.request
from dataclasses import dataclass, field

from bench.machine import LOGS, ROOT

UPSTREAM_PORT = 9100
PEERS = ROOT / ".venv-peers"
NGINX = PEERS / "nginx" / "root" / "usr" / "sbin" / "nginx"
LITELLM = PEERS / "litellm" / "bin" / "litellm"
PORTKEY = PEERS / "portkey" / "node_modules" / "@portkey-ai" / "gateway"


@dataclass(frozen=True)
class Target:
    """One row of the table."""

    name: str
    port: int
    command: str = ""
    """Empty for the provider itself."""
    version: str = ""
    env: dict[str, str] = field(default_factory=dict[str, str])
    headers: tuple[str, ...] = ()
    slow: bool = False
    """Answers take so long that a window of seconds holds too few of them."""


def all_targets() -> list[Target]:
    """Every target that can be started here."""
    targets = [
        Target("direct", UPSTREAM_PORT),
        Target(
            "orchestrator",
            9310,
            f"{ROOT}/.venv/bin/python -m orchestrator serve bench/gateway.yaml",
            version=_said("git", "describe", "--always", "--dirty"),
            env={"BENCH_KEY": "sk-bench"},
        ),
    ]
    if NGINX.exists():
        run = LOGS / "nginx"
        run.mkdir(parents=True, exist_ok=True)
        command = f"{NGINX} -p {run} -c {ROOT}/bench/nginx.conf"
        targets.append(Target("nginx", 9301, command, version=_said(str(NGINX), "-v")))
    if PORTKEY.exists():
        targets.append(
            Target(
                "portkey",
                9304,
                f"node {PORTKEY}/build/start-server.js --port=9304 --headless",
                version=json.loads((PORTKEY / "package.json").read_text("utf-8"))["version"],
                headers=(
                    "x-portkey-provider: openai",
                    f"x-portkey-custom-host: http://127.0.0.1:{UPSTREAM_PORT}/v1",
                ),
            )
        )
    if LITELLM.exists():
        targets.append(
            Target(
                "litellm",
                9303,
                f"{LITELLM} --config {ROOT}/bench/litellm.yaml --port 9303 --num_workers 1"
                " --telemetry False",
                version=_said(str(LITELLM.with_name("pip")), "show", "litellm").split("\n")[1],
                env={
                    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                    "LITELLM_MODE": "PRODUCTION",
                    "LITELLM_LOG": "ERROR",
                    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
                },
                slow=True,
            )
        )
    return targets


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return (done.stdout or done.stderr).strip()


def not_ready(target: Target, seconds: float) -> str | None:
    """Waits until the target streams two tokens as two tokens; returns why it doesn't, or None."""
    body = {"model": "mock", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    headers = {"content-type": "application/json", "authorization": "Bearer sk-test"}
    headers |= dict(line.split(": ", 1) for line in target.headers)
    request = urllib.request.Request(
        f"http://127.0.0.1:{target.port}/v1/chat/completions",
        json.dumps(body | {"stream": True}).encode(),
        headers,
    )
    until = time.monotonic() + seconds
    why = "it was not asked"
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                text: bytes = response.read()
            if text.count(b" zq") == 2:
                return None
            why = f"it answered {text[:200]!r}"
        except OSError as error:
            why = repr(error)
        time.sleep(0.2)  # a peer gives no sign when it is ready but its answer
    return why
