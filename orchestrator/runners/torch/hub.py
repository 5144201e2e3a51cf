"""Models of the hub on this machine: fetched, listed and removed through the hub's own library.

They lie in the cache that it shares with all programs that use it (`HF_HOME`, `HF_HUB_CACHE`).
"""

from dataclasses import dataclass
from pathlib import Path

import httpx2
from huggingface_hub import CacheNotFound, HFCacheInfo, scan_cache_dir, snapshot_download

from orchestrator.errors import ConfigError, describe
from orchestrator.runners.torch.locate import HubModel, locate

FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.safetensors")
"""What a model is read from; the same weights in other formats would double it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldModel:
    """A model in the cache."""

    name: str
    size_bytes: int
    """On the disk, all revisions together."""
    revisions: int
    path: Path


def pull(model: str, revision: str | None) -> Path:
    """Fetches a model, or what is missing of it.

    Args:
        model: A hub id.
        revision: Branch, tag or commit; None is the newest.

    Returns:
        Where it lies.

    Raises:
        ConfigError: It is no hub id, or it can't be fetched.
    """
    if not isinstance(locate(model), HubModel):
        raise ConfigError(f"model {model!r} is on this machine already", param="model")
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(FILES)))
    except (OSError, ValueError, httpx2.HTTPError) as error:
        why = describe(error).splitlines()[0]
        raise ConfigError(f"model {model!r} can't be fetched: {why}", param="model") from error


def held() -> list[HeldModel]:
    """Returns the models in the cache, by name."""
    cache = _cache()
    if cache is None:
        return []
    return sorted(
        (
            HeldModel(
                name=repo.repo_id,
                size_bytes=repo.size_on_disk,
                revisions=len(repo.revisions),
                path=repo.repo_path,
            )
            for repo in cache.repos
            if repo.repo_type == "model"
        ),
        key=lambda model: model.name,
    )


def remove(model: str) -> int:
    """Removes a model with all its revisions; returns the bytes that are free then.

    Raises:
        ConfigError: It isn't in the cache.
    """
    cache = _cache()
    repos = cache.repos if cache else frozenset()
    found = [repo for repo in repos if repo.repo_type == "model" and repo.repo_id == model]
    if cache is None or not found:
        raise ConfigError(f"model {model!r} isn't in the hub's cache", param="model")
    commits = [revision.commit_hash for repo in found for revision in repo.revisions]
    strategy = cache.delete_revisions(*commits)
    strategy.execute()
    return strategy.expected_freed_size


def _cache() -> HFCacheInfo | None:
    try:
        return scan_cache_dir()
    except CacheNotFound:  # nothing was ever fetched
        return None
