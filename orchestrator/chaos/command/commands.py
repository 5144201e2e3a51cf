"""All commands under one name; a module's import makes its commands known."""

from orchestrator.chaos.command import judging, listing, live, provider, simulated
from orchestrator.chaos.command.app import app

MODULES = (listing, simulated, live, provider, judging)

__all__ = ["MODULES", "app"]
