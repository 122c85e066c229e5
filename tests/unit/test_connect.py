"""Other programs' files: what is theirs stays, what is ours gets in, once."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from garra.connect.clients import CLIENTS
from garra.connect.files import edit, write
from garra.connect.merge import merged
from garra.connect.words import FileChange, Served
from garra.errors import ConfigError

SERVED = Served("http://127.0.0.1:11434", "demo", 8192, "garra")
KEYED = Served("http://box:11434", "demo:fast", 65536, "garra", key_env="GARRA_API_KEY")


def parsed(text: str, form: str) -> Any:
    match form:
        case "json":
            return json.loads(text)
        case "toml":
            return tomllib.loads(text)
        case "yaml":
            return YAML(typ="safe").load(text)
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("served", [SERVED, KEYED], ids=["open", "keyed"])
def test_what_a_client_gets_is_in_its_files_and_only_once(name: str, served: Served) -> None:
    setup = CLIENTS[name](served)
    assert setup.files or setup.environment or setup.command or setup.steps
    for change in setup.files:
        text = merged("", change)
        assert parsed(text, change.form)
        assert merged(text, change) == text, "the second time changes nothing"
    told = str(setup)
    assert served.url in told
    assert served.model in told
    assert (served.key_env is None) or served.key_env in told or name == "vscode"


@pytest.mark.parametrize("name", CLIENTS)
def test_no_key_stands_in_a_file(name: str) -> None:
    secret = Served("http://box", "demo", 8192, "garra-SECRET", key_env="GARRA_API_KEY")
    assert "SECRET" not in str(CLIENTS[name](secret))


def test_json_keeps_what_is_theirs_and_how_it_is_indented() -> None:
    before = '{\n    "theme": "dark",\n    "provider": {"other": {"npm": "x"}, "garra": {"name": "old"}}\n}\n'
    (change,) = CLIENTS["opencode"](SERVED).files
    after = merged(before, change)
    told = json.loads(after)
    assert told["theme"] == "dark"
    assert told["provider"]["other"] == {"npm": "x"}
    assert told["provider"]["garra"]["options"]["baseURL"] == "http://127.0.0.1:11434/v1"
    assert after.startswith('{\n    "theme"')


def test_yaml_keeps_comments_and_other_models() -> None:
    before = (
        "name: mine # a comment\nversion: 0.0.1\nschema: v1\nmodels:\n  - name: other\n    provider: x\n"
        "  - name: garra demo\n    provider: old\n"
    )
    (change,) = CLIENTS["continue"](SERVED).files
    after = merged(before, change)
    assert "# a comment" in after
    told = parsed(after, "yaml")
    assert (told["name"], told["version"]) == ("mine", "0.0.1"), "what the file is called is its owner's to say"
    assert [one["name"] for one in told["models"]] == ["other", "garra demo"]
    assert told["models"][1]["provider"] == "openai"
    assert merged(after, change) == after


def test_toml_keeps_comments_and_tables() -> None:
    before = '# mine\nmodel = "gpt"\napproval_policy = "never"\n\n[model_providers.other]\nname = "x"\n\n[tui]\na = 1\n'
    (change,) = CLIENTS["codex"](KEYED).files
    after = merged(before, change)
    told = tomllib.loads(after)
    assert after.startswith("model_provider =") or "# mine" in after
    assert "# mine" in after
    assert (told["model"], told["model_provider"], told["approval_policy"]) == ("demo:fast", "garra", "never")
    assert set(told["model_providers"]) == {"other", "garra"}
    assert told["model_providers"]["garra"]["env_key"] == "GARRA_API_KEY"
    assert told["tui"] == {"a": 1}
    assert merged(after, change) == after


def test_env_files_keep_their_other_lines() -> None:
    change = FileChange("~/.x", "env", {"A": "1", "B": "2"})
    assert merged("# hi\nexport A=9\nC=3\n", change) == "# hi\nA=1\nC=3\nB=2\n"


@pytest.mark.parametrize(
    ("form", "text"),
    [("json", "[1]"), ("json", '{"a": 1, // a comment\n}'), ("yaml", "- 1"), ("yaml", "a: [1"), ("toml", "[x")],
)
def test_a_file_that_is_not_what_it_should_be_is_left_alone(form: Any, text: str, tmp_path: Path) -> None:
    file = tmp_path / "settings"
    file.write_text(text)
    with pytest.raises(ConfigError, match="cannot change"):
        edit(FileChange(str(file), form, {"a": {"b": 2}}))
    assert file.read_text() == text


def test_writing_keeps_a_copy_and_follows_links(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles" / "settings.json", tmp_path / "home" / "settings.json"
    real.parent.mkdir()
    link.parent.mkdir()
    real.write_text('{"a": 1}')
    link.symlink_to(real)
    one = edit(FileChange(str(link), "json", {"b": 2}))
    assert '+  "b": 2' in one.difference()
    kept = write(one)
    assert kept is not None
    assert kept.read_text() == '{"a": 1}'
    assert link.is_symlink()
    assert json.loads(real.read_text()) == {"a": 1, "b": 2}
    again = edit(FileChange(str(link), "json", {"b": 3}))
    write(again)
    assert kept.read_text() == '{"a": 1}', "the first copy is the one that counts"
    new = edit(FileChange(str(tmp_path / "deep" / "new.json"), "json", {"a": 1}))
    assert write(new) is None
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["new.json"]
