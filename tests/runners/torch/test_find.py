import asyncio
from pathlib import Path

import pytest
from huggingface_hub import constants

from orchestrator.errors import ConfigError
from orchestrator.runners.torch.find import find
from orchestrator.runners.torch.settings import TorchSettings

COMMIT = "0" * 40


async def found(model: str, revision: str | None = None) -> str:
    async with asyncio.timeout(5):
        return await find(TorchSettings(model=model, revision=revision))


async def test_a_file_or_directory_is_told_with_its_place(tmp_path: Path):
    (tmp_path / "m.gguf").write_bytes(b"")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")

    assert await found(str(tmp_path / "m.gguf")) == str(tmp_path / "m.gguf")
    assert await found(str(tmp_path)) == str(tmp_path)


async def test_a_model_of_the_hub_is_found_in_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--acme--small"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}", encoding="utf-8")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT, encoding="utf-8")

    place = await found("acme/small")

    assert place == f"the hub's cache, {snapshot / 'config.json'}"


async def test_a_model_that_neither_cache_nor_hub_can_tell_of_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")

    with pytest.raises(ConfigError, match="'acme/none' isn't in the hub's cache") as caught:
        await found("acme/none")

    assert caught.value.param == "model"
    assert "\n" not in caught.value.message


async def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such file"):
        await found(str(tmp_path / "none.gguf"))
