"""Reading, converting and keeping models, on a tiny one."""

import os
import resource
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.runners.torch import conversion
from orchestrator.runners.torch.engine import Engine
from orchestrator.runners.torch.loading import LoadedModel, LoadError, load
from orchestrator.runners.torch.passes import Plain
from orchestrator.runners.torch.settings import Dtype, TorchSettings
from orchestrator.runners.torch.wire import Count, Counted
from tests.runners.torch import tiny


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    tiny.write_gguf(path)
    return path


def read(model: Path | str, dtype: Dtype = "float32") -> tuple[LoadedModel, list[str]]:
    stages: list[str] = []
    loaded = load(TorchSettings(model=str(model), device="cpu", dtype=dtype), stages.append)
    return loaded, stages


def converted(stages: list[str]) -> bool:
    return any("converting" in stage for stage in stages)


def test_a_directory_of_transformers_is_read_as_it_is(tmp_path: Path) -> None:
    tiny.write_directory(tmp_path / "tiny")

    loaded, stages = read(tmp_path / "tiny")

    assert not converted(stages)
    assert loaded.facts.context_length == tiny.CONTEXT
    assert loaded.facts.dtype == "float32"
    assert loaded.facts.vocabulary == len(loaded.tokenizer)
    assert loaded.end_tokens == {0}
    assert loaded.facts.parameters * 4 <= loaded.facts.memory_bytes


def test_a_gguf_is_converted_once_and_read_from_the_cache_then(gguf: Path) -> None:
    first, first_stages = read(gguf)
    again, again_stages = read(gguf)

    assert converted(first_stages)
    assert not converted(again_stages)
    assert first.facts == again.facts
    count = Count(1, [{"role": "user", "content": "plain words"}], None)
    counted, counted_again = (
        Engine(one, Plain(one.model, context=100, tokens=100)).count(count)
        for one in (first, again)
    )
    assert isinstance(counted[0], Counted)
    assert counted == counted_again


def test_a_context_is_less_than_what_the_model_was_made_for(tmp_path: Path) -> None:
    tiny.write_directory(tmp_path / "tiny")

    def read_with(context: int) -> LoadedModel:
        asked = TorchSettings(model=str(tmp_path / "tiny"), device="cpu", context=context)
        return load(asked, lambda _: None)

    assert read_with(64).facts.context_length == 64
    with pytest.raises(LoadError, match=f"made for {tiny.CONTEXT}"):
        read_with(tiny.CONTEXT + 1)


def test_another_dtype_is_read_from_the_same_copy(gguf: Path) -> None:
    read(gguf)

    loaded, stages = read(gguf, dtype="bfloat16")

    assert not converted(stages)
    assert loaded.facts.dtype == "bfloat16"


@pytest.mark.parametrize("damaged", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_damaged_copy_is_made_anew(gguf: Path, damaged: str) -> None:
    read(gguf)
    (conversion.place_of(gguf) / damaged).write_bytes(b"\x00 not what it was")

    _, stages = read(gguf)
    _, later = read(gguf)

    assert any("damaged" in stage for stage in stages)
    assert converted(stages)
    assert not converted(later)


def test_a_changed_file_has_another_place_in_the_cache(gguf: Path) -> None:
    before = conversion.place_of(gguf)

    with gguf.open("ab") as file:
        file.write(b"more")

    assert conversion.place_of(gguf) != before


def test_the_same_file_elsewhere_and_later_has_the_same_copy(gguf: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone" / gguf.name
    clone.parent.mkdir()
    shutil.copyfile(gguf, clone)
    os.utime(clone, (1, 1))

    assert conversion.place_of(clone) == conversion.place_of(gguf)


def test_another_training_of_the_same_size_has_another_place(tmp_path: Path) -> None:
    blocks = conversion.BLOCKS * 2
    path = tmp_path / "large.gguf"
    with path.open("wb") as file:
        file.truncate(blocks * conversion.BLOCK_BYTES)  # sparse: takes no room
    before = conversion.place_of(path)

    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")

    assert conversion.place_of(path) != before


def test_what_a_killed_conversion_left_is_removed_by_the_next(gguf: Path, cache: Path) -> None:
    left = cache / "orchestrator" / "models" / f"{conversion.UNFINISHED}999999999-abc"
    left.mkdir(parents=True)

    read(gguf)

    assert not left.exists()
    assert [path.name for path in left.parent.iterdir()] == [conversion.place_of(gguf).name]


def test_a_cache_that_cannot_be_written_costs_time_and_nothing_else(
    gguf: Path, cache: Path
) -> None:
    cache.write_text("a file where a directory should be", encoding="utf-8")

    loaded, stages = read(gguf, dtype="bfloat16")

    assert any("can't be kept" in stage for stage in stages)
    assert loaded.facts.dtype == "bfloat16"


@contextmanager
def no_file_beyond(limit: int) -> Generator[None]:
    """Refuses what is written beyond so many bytes of a file, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_while_the_copy_is_written_costs_time_and_nothing_else(
    gguf: Path, cache: Path
) -> None:
    warnings: list[str] = []
    with no_file_beyond(40_000):  # enough for the tokenizer, too little for the weights
        loaded = load(TorchSettings(model=str(gguf)), lambda _: None, warn=warnings.append)

    assert loaded.facts.dtype == "float32"
    assert len(warnings) == 1
    assert "SafetensorError" in warnings[0]
    assert list((cache / "orchestrator" / "models").iterdir()) == []


def test_a_disk_without_room_for_the_copy_is_not_written_to(
    gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "SPARE_BYTES", 1 << 60)
    warnings: list[str] = []

    loaded = load(TorchSettings(model=str(gguf)), lambda _: None, warn=warnings.append)

    assert loaded.facts.dtype == "float32"
    assert len(warnings) == 1
    assert "MiB are free" in warnings[0]
    assert list((cache / "orchestrator" / "models").iterdir()) == []


def test_two_that_convert_at_once_agree_on_the_first_copy(gguf: Path) -> None:
    parts = conversion.read(gguf, lambda _: None)
    place = conversion.place_of(gguf)

    conversion.store(parts, place)
    conversion.store(parts, place)

    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_a_model_without_chat_template_is_refused_in_words(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    tiny.write_directory(folder)
    (folder / "chat_template.jinja").unlink()

    with pytest.raises(LoadError, match="has no chat template"):
        read(folder)


def test_a_hub_model_that_is_not_here_names_what_to_do_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(LoadError) as failure:
        read("owner/no-such-model")

    assert "owner/no-such-model" in str(failure.value)
    assert "hf download owner/no-such-model" in str(failure.value)


def test_a_device_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    tiny.write_directory(tmp_path)

    with pytest.raises(LoadError, match="device 'cuda:9' can't be used"):
        load(TorchSettings(model=str(tmp_path), device="cuda:9"), lambda _: None)


def test_a_model_that_is_nowhere_is_a_fault_of_the_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read(tmp_path / "none")
