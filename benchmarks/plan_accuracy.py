"""How far plans are from what the engine allocates: planned against its own log, for many architectures and settings.

    make plan-accuracy          all cases, in half a minute; exit code 1 when a gate is missed

Files of the full shape of real models, with holes for weights, are written to a temporary folder; the engine starts on
each and says in its log what it allocated. Gates: with the engine's accounting 2 % or 8 MiB, by formula 6 %.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from garra import config, planning
from garra.bill import HOST, Bill
from garra.engine import accounting, store
from garra.engine.argv import server_argv
from garra.planner.memory import bill as by_formula
from garra.planner.plan import knobs_of
from garra.registry import card as cards
from garra.registry import gguf
from garra.registry import store as models
from garra.spec import MIB, EngineBuild, KvType, LaunchPlan, Profile
from tests import shapes
from tests.tiny_gguf import write

ENGINE_LIMIT, ENGINE_LIMIT_MIB, FORMULA_LIMIT = 0.02, 8, 0.06
_START_LIMIT_S = 60.0
_BUFFER = re.compile(r"(model|KV|RS|compute|output) buffer size\s*=\s*([\d.]+) MiB")


@dataclass(frozen=True)
class Case:
    """One launch."""

    model: str
    context: int
    slots: int = 1
    kv: KvType = "f16"
    ubatch: int = 512
    flash: bool = True
    unified: bool = False
    draft_depth: int = 0

    def __str__(self) -> str:
        words = [f"{self.model:<9} {self.slots}x{self.context:<6} {self.kv:<5} ub {self.ubatch:<4}"]
        words += ["fa off"] * (not self.flash) + ["unified"] * self.unified
        return " ".join(words + [f"mtp {self.draft_depth}"] * bool(self.draft_depth))


CASES = (
    Case("smollm2", 4096),
    Case("smollm2", 2048, slots=4),
    Case("smollm2", 8192, kv="q8_0"),
    Case("smollm2", 4096, kv="q4_0", ubatch=128),
    Case("smollm2", 4096, flash=False),
    Case("llama1b", 8192, slots=2),
    Case("llama1b", 32768, kv="q8_0", ubatch=256),
    Case("llama1b", 4096, slots=4, unified=True),
    Case("llama1b", 4096, ubatch=2048),
    Case("gemma4b", 8192),
    Case("gemma4b", 32768, slots=2, kv="q8_0"),
    Case("gemma4b", 8192, slots=4, unified=True),
    Case("qwen-moe", 8192, slots=2),
    Case("qwen-moe", 16384, kv="q8_0", ubatch=128),
    Case("qwen-moe", 4096, flash=False),
    Case("mla", 8192),
    Case("mla", 16384, slots=2, ubatch=256),
    Case("qwen2b", 16384, slots=2, ubatch=256),
    Case("qwen2b", 8192, kv="q4_0"),
    Case("qwen4b", 8192),
    Case("qwen4b", 8192, slots=4),
    Case("qwen4b", 32768, kv="q8_0"),
    Case("qwen4b", 131072, kv="q4_0"),
    Case("qwen4b", 32768, slots=2, kv="q8_0", draft_depth=2),
    Case("qwen4b", 8192, slots=4, ubatch=128, draft_depth=3),
    Case("qwen4b", 8192, slots=2, unified=True, draft_depth=1),
    Case("qwen9b", 8192),
    Case("qwen9b", 16384, slots=2, kv="q8_0", draft_depth=2),
    Case("qwen9b", 8192, slots=4, kv="q8_0"),
    Case("qwen9b", 8192, flash=False),
)


def files(folder: Path) -> dict[str, Path]:
    """The models, by the names of the cases."""
    made = {
        "llama1b": shapes.llama(
            n_layer=16, n_embd=2048, n_ff=8192, n_head=32, n_head_kv=8, n_vocab=128_256, tied=True, n_ctx=131_072
        ),
        "gemma4b": shapes.gemma3(
            n_layer=34, n_embd=2560, n_ff=10240, n_head=8, n_head_kv=4, head=256, window=1024, n_vocab=262_144
        ),
        "qwen-moe": shapes.qwen3moe(
            n_layer=16, n_embd=2048, n_ff_exp=768, n_expert=64, n_expert_used=8, n_head=32, n_head_kv=4, head=128,
            n_vocab=151_936,
        ),
        "mla": shapes.deepseek2(
            n_layer=12, n_embd=2048, n_ff=8192, n_ff_exp=1536, n_expert=16, n_head=20, q_rank=768, kv_rank=512, rope=64,
            nope=192, value=256, n_vocab=102_400,
        ),
        "qwen2b": shapes.qwen35_2b(),
        "qwen4b": shapes.qwen35_4b(),
        "qwen9b": shapes.qwen35_9b(),
    }  # fmt: skip
    paths = {name: write(folder / f"{name}.gguf", model) for name, model in made.items()}
    demo = models.locate(config.load().profiles["demo"].model)
    assert demo is not None, "garra pull demo"
    return paths | {"smollm2": demo}


def plan_of(case: Case, path: Path, base: Profile) -> LaunchPlan:
    """The case as a launch on the CPU. Weights stay as the file has them: repacking would hide what is allocated."""
    profile = replace(
        base,
        name=case.model,
        context=case.context,
        slots=case.slots,
        batch=max(512, case.ubatch),
        ubatch=case.ubatch,
        cache_type_k=case.kv,
        cache_type_v=case.kv,
        flash_attention="on" if case.flash else "off",
        unified_kv=case.unified,
        speculation="mtp" if case.draft_depth else "none",
        draft_depth=max(1, case.draft_depth),
        cache_ram_mib=0,
        gpu_layers=0,
        extra_args=("--no-repack", "--no-warmup"),
    )
    return LaunchPlan(profile, path, threads=2, gpu_layers=0)


def allocated_mib(build: EngineBuild, plan: LaunchPlan, folder: Path) -> float:
    """What the engine says in its log that it allocated, until it is ready to serve."""
    words = [*server_argv(build.tool("llama-server"), plan, folder / "engine.sock"), "--log-verbosity", "4"]
    log = folder / "engine.log"
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, env=planning.environment(build, None))
    try:
        deadline = time.monotonic() + _START_LIMIT_S
        while "listening on" not in (text := log.read_text(errors="replace")) or "all slots are idle" not in text:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the engine did not start: {text[-800:]}")
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
        (folder / "engine.sock").unlink(missing_ok=True)
    return sum(_buffers_mib(text))


def _buffers_mib(text: str) -> list[float]:
    """Every buffer of the log; where a context reserves its compute buffer anew, the last one counts."""
    kept: list[float] = []
    compute: int | None = None
    for kind, size in _BUFFER.findall(text):
        if kind == "compute" and compute is not None:
            kept[compute] = float(size)
            continue
        compute = len(kept) if kind == "compute" else None
        kept.append(float(size))
    return kept


def planned_mib(bill: Bill) -> float:
    return bill.total(HOST) / MIB


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--json", type=Path, help="write every case to this file")
    options = words.parse_args()
    build, base = store.current(), config.load().profiles["demo"]
    rows = []
    with tempfile.TemporaryDirectory(prefix="plan-accuracy-") as name:
        paths = files(Path(name))
        for case in CASES:
            plan = plan_of(case, paths[case.model], base)
            formula = by_formula(cards.of_header(gguf.read(plan.model_path)), knobs_of(plan))
            told = accounting.account(build, plan, planning.environment(build, None))
            assert told is not None, "this engine's llama-fit-params does not account like the server"
            engine = accounting.complete(told, formula)
            real = allocated_mib(build, plan, Path(name))
            rows.append({"case": str(case), "allocated_mib": real, "engine_mib": planned_mib(engine)})
            rows[-1]["formula_mib"] = planned_mib(formula)
            print(_line(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + os.linesep)
    return _verdict(rows)


def _error(row: dict[str, object], by: str) -> float:
    return float(str(row[f"{by}_mib"])) / float(str(row["allocated_mib"])) - 1


def _line(row: dict[str, object]) -> str:
    told = f"{row['case']:<52} {row['allocated_mib']:>9.1f} MiB"
    return told + f"   engine {100 * _error(row, 'engine'):+6.2f} %   formula {100 * _error(row, 'formula'):+6.2f} %"


def _verdict(rows: list[dict[str, object]]) -> int:
    missed = 0
    for by, limit in (("engine", ENGINE_LIMIT), ("formula", FORMULA_LIMIT)):
        errors = [_error(row, by) for row in rows]
        beyond = [row for row in rows if abs(_error(row, by)) > limit and not _forgiven(row, by)]
        missed += len(beyond)
        print(
            f"{by}: {100 * min(errors):+.2f} % to {100 * max(errors):+.2f} % over {len(rows)} cases, limit {limit:.0%}"
        )
        for row in beyond:
            print(f"  missed: {row['case']}")
    return 1 if missed else 0


def _forgiven(row: dict[str, object], by: str) -> bool:
    """A few MiB of a small model are many per cent of it."""
    return by == "engine" and abs(float(str(row["engine_mib"])) - float(str(row["allocated_mib"]))) <= ENGINE_LIMIT_MIB


if __name__ == "__main__":
    sys.exit(main())
