"""The command lines: goldens for a described RTX 3070, and what extra_args may not hold."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from garra import config
from garra.engine.argv import flags_of_help, owned_flags, server_argv, unsupported
from garra.errors import ConfigError
from garra.host import Gpu, HostSpec
from garra.parts import shipped_card
from garra.planner.plan import plan_launch
from garra.planner.room import Margins, of_host
from garra.spec import LaunchPlan, Profile

GOLDEN = Path(__file__).parents[1] / "golden"
RTX_3070 = HostSpec(
    cores=8, ram_total_mib=32768, ram_free_mib=24576, gpus=(Gpu(0, "NVIDIA GeForce RTX 3070", 8192, 7400),)
)


def plan_of(profile: Profile, backend: str = "cuda") -> LaunchPlan:
    card = shipped_card(profile.model)
    assert card is not None
    room = of_host(RTX_3070, backend, Margins())
    return plan_launch(profile, card, RTX_3070, room, Path("/models") / f"{profile.name}.gguf")


def argv_of(name: str) -> list[str]:
    plan = plan_of(config.load().profiles[name])
    return server_argv(Path("/engine/llama-server"), plan, Path("/run/garra/engine.sock"))


def paired(argv: list[str]) -> str:
    """One flag with its value per line."""
    lines = [argv[0]]
    for word in argv[1:]:
        if word.startswith("-"):
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", ["turbo_4b", "balanced_9b", "cpu_fallback", "demo"])
def test_the_command_line_is_the_golden_one(name: str) -> None:
    path = GOLDEN / f"{name}-rtx3070.argv"
    told = paired(argv_of(name))
    if os.environ.get("GARRA_TEST_WRITE") == "1":
        path.write_text(told)
    assert told == path.read_text()


@pytest.mark.parametrize("name", ["turbo_4b", "balanced_9b"])
def test_gpu_profiles_hold_every_flag_of_the_card(name: str) -> None:
    line = " ".join(argv_of(name))
    for words in (
        "-ngl 999",
        "-fa on",
        "--cache-type-k q8_0 --cache-type-v q8_0",
        "-np 2",
        "--cont-batching",
        "--spec-type draft-mtp --spec-draft-n-max 2",
        "--fit off",
        "--cache-ram 2048",
        "-t 8 -tb 8",
    ):
        assert words in line


def test_context_is_per_slot() -> None:
    argv = argv_of("turbo_4b")
    assert argv[argv.index("-c") + 1] == str(2 * 32768)


def test_extra_args_come_last_and_may_not_set_garras_flags() -> None:
    loaded = config.load({"profiles": {"demo": {"extra_args": ["--numa", "isolate"]}}})
    argv = server_argv(Path("s"), plan_of(loaded.profiles["demo"], "cpu"), Path("/s.sock"))
    assert argv[-2:] == ["--numa", "isolate"]
    assert owned_flags(["--numa", "--host=0.0.0.0", "-c", "5"]) == ["--host=0.0.0.0", "-c"]


def speculating(**values: object) -> str:
    loaded = config.load({"profiles": {"demo": values}})
    plan = replace(plan_of(loaded.profiles["demo"], "cpu"), draft=Path("/d.gguf"))
    return " ".join(server_argv(Path("s"), plan, Path("/s.sock")))


def test_every_way_to_speculate_has_its_flags() -> None:
    assert "--spec-type none" in speculating()
    assert "--spec-type ngram-mod --jinja" in speculating(speculation="ngram")
    line = speculating(speculation="ngram", ngram="map-k", ngram_match=6, ngram_draft=16)
    assert "--spec-type ngram-map-k --spec-ngram-map-k-size-n 6 --spec-ngram-map-k-size-m 16" in line
    line = speculating(speculation="ngram", ngram_match=8, ngram_draft=32)
    assert "--spec-ngram-mod-n-match 8 --spec-ngram-mod-n-max 32 --spec-ngram-mod-n-min 16" in line
    assert "ngram-cache --jinja" in speculating(speculation="ngram", ngram="cache", ngram_match=4)
    line = speculating(speculation="draft", draft_model="file:/d.gguf")
    assert "--spec-type draft-simple -md /d.gguf -ngld 0 --spec-draft-n-max 4" in line
    assert "--spec-type draft-mtp --spec-draft-n-max 2" in speculating(speculation="mtp")
    assert "--spec-type draft-mtp --spec-draft-n-max 1" in speculating(speculation="mtp", draft_depth=1)


def test_a_preset_of_context_brings_its_cache_type() -> None:
    def cached(**values: object) -> tuple[int, str, str]:
        table = {"model": "file:/m.gguf", **values}
        made = config.load({"profiles": {"mine": table}}).profiles["mine"]
        return made.context, made.cache_type_k, made.cache_type_v

    assert cached(context="short") == (4096, "f16", "f16")
    assert cached(context="medium") == (16384, "f16", "f16")
    assert cached(context="long") == (32768, "q8_0", "q8_0")
    assert cached(context="long", cache_type_k="f16") == (32768, "f16", "q8_0")
    assert cached(context="long", flash_attention="off") == (32768, "f16", "f16")
    assert cached(context=32768) == (32768, "f16", "f16")


def test_a_batch_holds_what_all_slots_may_draft() -> None:
    """llama-server aborts at the first draft that does not fit (b11434, two slots, -b 128, n-grams of 64)."""
    assert "-b 130 -ub 128" in speculating(speculation="ngram")
    assert "-b 520 " in speculating(speculation="ngram", slots=8)
    assert "-b 128 " in speculating(speculation="ngram", ngram="map-k")
    assert "-b 128 " in speculating(speculation="mtp")
    loaded = config.load({"profiles": {"demo": {"speculation": "ngram"}}})
    assert "2 slots draft up to 64 tokens each" in plan_of(loaded.profiles["demo"], "cpu").notes[0]


def test_drafting_with_a_model_needs_one() -> None:
    with pytest.raises(ConfigError, match="needs a draft_model"):
        config.load({"profiles": {"demo": {"speculation": "draft"}}})


def test_flags_are_read_from_the_help() -> None:
    told = (
        "----- common params -----\n\n-h,    --help, --usage                  print usage and exit\n"
        "-fa,   --flash-attn [on|off|auto]       set Flash Attention use\n"
        "                                        --not-a-flag in prose\n"
        "--cont-batching                         whether\n"
    )
    supported = flags_of_help(told)
    assert {"-h", "--help", "-fa", "--flash-attn", "--cont-batching"} <= supported
    assert "--not-a-flag" not in supported
    assert unsupported(["x", "-fa", "on", "--spec-type", "none", "-5"], supported) == ["--spec-type"]
