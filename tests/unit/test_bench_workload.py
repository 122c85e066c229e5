"""Prompts: exact lengths by whatever counts, no shared beginnings but where they are wanted; files of conversations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from garra.bench import dataset, sizing
from garra.bench.session import dice
from garra.bench.words import Messages, Talk
from garra.bench.workload import KINDS, kind_of
from garra.errors import BadRequest


async def coarse(messages: Messages) -> int:
    """A tokenizer of sorts: words of up to four letters, and seven tokens of template per message."""
    n = 0
    for message in messages:
        n += 7 + sum(-(-len(word) // 4) for word in str(message["content"]).split())
    return n


def text_of(talk: Talk) -> str:
    return " ".join(str(message["content"]) for turn in talk.turns for message in turn.new)


@pytest.mark.parametrize("name", KINDS)
async def test_every_workload_is_made_to_its_exact_length(name: str) -> None:
    sizer = sizing.Sizer(coarse)
    for wanted in (200, 256, 700):
        for key in "abcdef":
            talk = await sizer.sized(kind_of(name).recipe(dice(1), key, wanted, 32))
            assert await coarse(talk.turns[0].new) == wanted
            assert talk.turns[0].n_prompt == wanted


async def test_a_prompt_longer_than_wished_before_its_text_is_left_as_near_as_can_be() -> None:
    talk = await sizing.Sizer(coarse).sized(kind_of("agent").recipe(dice(1), "a", 10, 8))
    assert await coarse(talk.turns[0].new) > 10


async def test_nobody_counts() -> None:
    async def dumb(messages: Messages) -> None:
        return None

    talk = await sizing.Sizer(dumb).sized(kind_of("chat").recipe(dice(1), "a", 100, 8))
    assert len(text_of(talk).split()) > 50


async def test_seeds_repeat_and_differ() -> None:
    def talk(seed: int, key: str, name: str = "chat") -> str:
        recipe = kind_of(name).recipe(dice(seed), key)
        return str(recipe.drafts[0].messages(recipe.drafts[0].body))

    assert talk(1, "a") == talk(1, "a")
    assert talk(1, "a")[:60] != talk(1, "b")[:60]
    assert talk(1, "a") != talk(2, "a")
    assert talk(1, "a", "shared_prefix")[:500] == talk(1, "b", "shared_prefix")[:500]


def test_an_agents_turns_extend_each_other() -> None:
    recipe = kind_of("agent").recipe(dice(1), "a")
    assert len(recipe.drafts) == 4
    assert recipe.drafts[0].before[0]["role"] == "system"
    assert all(not draft.before for draft in recipe.drafts[1:])


def test_an_unknown_workload_is_told() -> None:
    with pytest.raises(BadRequest, match="chta"):
        kind_of("chta")


def lines(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_sharegpt_and_openai_shapes_are_read(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "mixed.jsonl",
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "x" * 400}]},
        {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "no"}], "max_tokens": 9},
        {"custom_id": "1", "body": {"messages": [{"role": "user", "content": "Yes"}], "max_completion_tokens": 5}},
        {"prompt": "Once"},
    )
    talks = dataset.read(path, 10)
    assert [text_of(talk) for talk in talks] == ["Hi", "Hello", "Yes", "Once"]
    assert [talk.turns[0].max_tokens for talk in talks] == [100, 9, 5, 128]
    assert dataset.read(path, 10, n_output=3)[0].turns[0].max_tokens == 3
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps([{"prompt": "One"}, {"prompt": "Two"}]))
    assert len(dataset.read(listed, 10)) == 2
    assert len(dataset.read(listed, 1)) == 1


@pytest.mark.parametrize("text", ["", '{"nothing": 1}', "not json", "[1, 2]"])
def test_a_file_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(BadRequest):
        dataset.read(path, 5)
