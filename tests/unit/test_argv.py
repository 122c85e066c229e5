"""The command lines: goldens for a described RTX 3070, and what extra_args may not hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from garra import config
from garra.engine.argv import flags_of_help, owned_flags, server_argv, unsupported
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
