"""The gateway of a scenario's own `system` section: a configuration file like any other."""

from pathlib import Path

from orchestrator.chaos.scenario.sections import System
from orchestrator.reading.quantities import duration_text

ROUTE = "chat"
LOCAL, SECOND, PROVIDER = "local", "second", "provider"
ORDERS = {
    "local": (LOCAL,),
    "provider": (PROVIDER,),
    "failover": (PROVIDER, LOCAL),
    "pair": (LOCAL, SECOND),
}
"""Deployments of the route, by the kind of the system."""


def write_config(system: System, folder: Path) -> Path:
    """Writes the file and returns where it is; its models and providers are stubs."""
    names = ORDERS[system.kind]
    deployments = "\n".join(_deployment(name, system) for name in names)
    place = folder / "gateway.yaml"
    place.write_text(
        f"server: {{drain: 5s, access_log: false}}\n"
        f"deployments:\n{deployments}\nroutes:\n  {ROUTE}: {{deployments: [{', '.join(names)}]}}\n",
        encoding="utf-8",
    )
    return place


def _deployment(name: str, system: System) -> str:
    stall, deadline = duration_text(system.stall), duration_text(system.deadline)
    runner = (
        "{kind: torch, model: stub}"
        if name != PROVIDER
        else "{kind: openai, base_url: 'http://127.0.0.1:9/v1', model: stub}"
    )
    permits = system.permits if name == PROVIDER and system.permits is not None else "null"
    restart = system.restart
    return f"""\
  {name}:
    runner: {runner}
    slots: {system.slots}
    queue: {{capacity: {system.queue}}}
    limits: {{requests_per_minute: {permits}}}
    retry: {{max_attempts: {system.attempts}, initial_backoff: 50ms, max_backoff: 1s}}
    breaker: {{failure_threshold: {system.failures}, open_for: {duration_text(system.open_for)}}}
    timeouts:
      connect: 1s
      first_token: {stall}
      first_step: {stall}  # a stub compiles nothing
      inter_token: {stall}
      total: {deadline}
    supervision:
      max_restarts: {restart.max}
      within: {duration_text(restart.per)}
      initial_backoff: 50ms
      max_backoff: 1s
"""
