"""Slots of local models whose host a run may break; each takes the real factory's place."""

import random
import sys
from collections.abc import Callable

from orchestrator.runners.base import SlotFactory
from orchestrator.runners.torch.runner import factory
from orchestrator.runners.torch.settings import TorchSettings

STUB = (sys.executable, "-P", "-m", "orchestrator.chaos.stub.host")
WEDGEABLE = (sys.executable, "-P", "-m", "orchestrator.chaos.stub.wedgeable")


def stub_factory(
    settings: TorchSettings,
    *,
    on_progress: Callable[[str], None],
    chance: random.Random | None = None,
) -> SlotFactory:
    """Makes the slots of a deployment whose model is a stub."""
    return factory(settings, on_progress=on_progress, chance=chance, program=STUB)


def wedgeable_factory(
    settings: TorchSettings,
    *,
    on_progress: Callable[[str], None],
    chance: random.Random | None = None,
) -> SlotFactory:
    """Makes the slots of a deployment whose real model host can be wedged."""
    return factory(settings, on_progress=on_progress, chance=chance, program=WEDGEABLE)
