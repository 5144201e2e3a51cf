"""Whether a local model is there, without loading it.

Files and directories are looked at. A model of the hub is looked for in the hub's own cache, then
at the hub, for it is fetched from there when it is loaded.
"""

import asyncio

import httpx2
from huggingface_hub import HfApi, try_to_load_from_cache

from orchestrator.errors import ConfigError, describe
from orchestrator.runners.torch.locate import GgufFile, HubModel, ModelDirectory, locate
from orchestrator.runners.torch.settings import TorchSettings

HUB_SECONDS = 10.0


async def find(settings: TorchSettings) -> str:
    """Looks for the model.

    Returns:
        Where it is, for people.

    Raises:
        ConfigError: It isn't there, or nobody can tell.
    """
    match locate(settings.model):
        case GgufFile(path) | ModelDirectory(path):
            return str(path)
        case HubModel(name):
            # the hub's library blocks: a thread, once, and never on the loop of a gateway
            return await asyncio.to_thread(_on_the_hub, name, settings.revision)


def _on_the_hub(name: str, revision: str | None) -> str:
    try:
        cached = try_to_load_from_cache(name, "config.json", revision=revision)
        if isinstance(cached, str):
            return f"the hub's cache, {cached}"
        HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS)
    except (OSError, ValueError, httpx2.HTTPError) as error:
        why = describe(error).splitlines()[0]
        raise ConfigError(
            f"model {name!r} isn't in the hub's cache, and the hub can't tell of it ({why})",
            param="model",
        ) from error
    return "the hub, to be fetched when it is loaded"
