"""A launch plan as a command line: the only file that spells one of llama-server's flags.

Everything that decides memory or speed is passed explicitly. The engine's own defaults and its auto-fit change what is
unset without saying so (`-c`, `-ngl`), and some defaults are large (`--cache-ram` is 8 GiB per engine).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from garra.spec import LaunchPlan, Profile

ALL_LAYERS = 999
"""More layers than any model has: the engine clips it."""

# Every spelling of a flag that garra sets or that would open another way in; `extra_args` may not hold them.
_OWNED = frozenset(
    """
    -m --model -mu --model-url -hf -hfr --hf-repo -hff --hf-file -dr --docker-repo -a --alias
    --host --port --reuse-port --api-key --api-key-file --ssl-key-file --ssl-cert-file --api-prefix
    -c --ctx-size -np --parallel -b --batch-size -ub --ubatch-size -t --threads -tb --threads-batch
    -ngl --gpu-layers --n-gpu-layers -fa --flash-attn -ctk --cache-type-k -ctv --cache-type-v
    -dev --device -sm --split-mode -mg --main-gpu -ts --tensor-split -ncmoe --n-cpu-moe -cmoe --cpu-moe
    -ctxcp --ctx-checkpoints --swa-checkpoints
    -cb --cont-batching -nocb --no-cont-batching -cram --cache-ram -fit --fit
    -kvu --kv-unified -no-kvu --no-kv-unified --kv-unified-per-slot
    --spec-type --spec-draft-n-max -rea --reasoning -n --predict --n-predict
    --temp --temperature --top-p --top-k --min-p --presence-penalty --repeat-penalty
    --mmproj-auto --no-mmproj --no-mmproj-auto --ui --no-ui --webui --no-webui --slots --no-slots --metrics --jinja
    --embedding --embeddings --rerank --reranking --pooling
    --offline --log-colors --log-disable --log-file --log-jsonl
    --models-dir --models-preset --models-max --tools --ui-mcp-proxy --webui-mcp-proxy -ag --agent --path
    """.split()
)


def server_argv(program: Path, plan: LaunchPlan, socket: Path, prompts: Path | None = None) -> list[str]:
    """The full command line of one engine. The same plan and socket always give the same list.

    `prompts`: the folder it may save its slots to.
    """
    profile = plan.profile
    words: list[str] = [str(program)]
    words += ["--model", str(plan.model_path), "--alias", profile.name, "--host", str(socket), "--offline"]
    words += ["-c", str(plan.total_context), "-np", str(profile.slots)]
    words += ["-b", str(profile.batch), "-ub", str(profile.ubatch)]
    words += ["-t", str(plan.threads), "-tb", str(plan.threads), "--fit", "off"]
    words += _offload(plan)
    words += ["-fa", profile.flash_attention]
    words += ["--cache-type-k", profile.cache_type_k, "--cache-type-v", profile.cache_type_v]
    words += ["--cont-batching", "--cache-ram", str(profile.cache_ram_mib), "--ctx-checkpoints", str(plan.checkpoints)]
    words += ["--kv-unified" if profile.unified_kv else "--no-kv-unified"]
    words += _speculation(plan)
    words += _kind(profile)
    words += ["--jinja", "--reasoning", profile.reasoning]
    words += _sampling(plan)
    if profile.max_tokens is not None:
        words += ["-n", str(profile.max_tokens)]
    if profile.text_only:
        words += ["--no-mmproj"]
    elif plan.projector is not None:
        words += ["--mmproj", str(plan.projector)]
    words += ["--slots", "--metrics", "--no-ui", "--log-colors", "off"]
    if prompts is not None:
        words += ["--slot-save-path", str(prompts)]
    return [*words, *profile.extra_args]


def bare_argv(program: Path, model: Path, socket: Path) -> list[str]:
    """llama-server as it is: its own defaults for everything that decides speed. What garra is measured against."""
    return [str(program), "--model", str(model), "--host", str(socket), "--offline", "--no-ui", "--log-colors", "off"]


def smoke_argv(program: Path, model: Path, socket: Path) -> list[str]:
    """The smallest engine that can prove a build: one slot, few cells."""
    words = [str(program), "--model", str(model), "--host", str(socket), "--offline", "-c", "256", "-np", "1"]
    return [
        *words,
        "-b",
        "64",
        "-ub",
        "64",
        "-ngl",
        "0",
        "--fit",
        "off",
        "--cache-ram",
        "0",
        "--no-ui",
        "--log-colors",
        "off",
    ]


def _kind(profile: Profile) -> list[str]:
    """What it gives instead of tokens, where it is no chat model."""
    match profile.kind:
        case "embedding":
            return ["--embeddings", *(["--pooling", profile.pooling] if profile.pooling is not None else [])]
        case "rerank":
            return ["--reranking", *(["--pooling", profile.pooling] if profile.pooling is not None else [])]
        case "chat":
            return []


def _offload(plan: LaunchPlan) -> list[str]:
    words = ["-ngl", str(plan.gpu_layers)]
    if plan.gpu is None and not plan.gpu_layers:
        words += ["--device", "none"]  # else a GPU build opens the GPU all the same
    if plan.experts_on_host:
        words += ["--n-cpu-moe", str(plan.experts_on_host)]
    return words


def _speculation(plan: LaunchPlan) -> list[str]:
    profile = plan.profile
    match profile.speculation:
        case "mtp":
            return ["--spec-type", "draft-mtp", "--spec-draft-n-max", str(profile.draft_depth)]
        case "ngram":
            return ["--spec-type", f"ngram-{profile.ngram}", *_ngram_sizes(profile)]
        case "draft":
            layers = str(plan.gpu_layers)
            words = ["--spec-type", "draft-simple", "-md", str(plan.draft), "-ngld", layers]
            return [*words, "--spec-draft-n-max", str(profile.draft_depth)]
        case "none":
            return ["--spec-type", "none"]


_NGRAM_SIZES = {
    "mod": ("--spec-ngram-mod-n-match", "--spec-ngram-mod-n-max"),
    "map-k": ("--spec-ngram-map-k-size-n", "--spec-ngram-map-k-size-m"),
    "map-k4v": ("--spec-ngram-map-k4v-size-n", "--spec-ngram-map-k4v-size-m"),
    "simple": ("--spec-ngram-simple-size-n", "--spec-ngram-simple-size-m"),
}


_LONGEST_NGRAM = {"mod": 64, "map-k": 48, "map-k4v": 48, "simple": 48, "cache": 8}


def longest_draft(profile: Profile) -> int:
    """Tokens a slot may draft at a time; 0 where nothing is drafted. Source: common_speculative_n_max of the engine."""
    match profile.speculation:
        case "none":
            return 0
        case "ngram":
            own = profile.ngram_draft if profile.ngram in _NGRAM_SIZES else None
            return own or _LONGEST_NGRAM[profile.ngram]
        case _:
            return profile.draft_depth


def _ngram_sizes(profile: Profile) -> list[str]:
    """How much must match and how much is drafted, where that is given and the kind has such sizes."""
    match, draft = _NGRAM_SIZES.get(profile.ngram, ("", ""))
    words = []
    if match and profile.ngram_match is not None:
        words += [match, str(profile.ngram_match)]
    if draft and profile.ngram_draft is not None:
        words += [draft, str(profile.ngram_draft)]
        if profile.ngram == "mod":  # its default minimum is longer than a short draft
            words += ["--spec-ngram-mod-n-min", str(min(48, profile.ngram_draft // 2))]
    return words


def _sampling(plan: LaunchPlan) -> list[str]:
    sampling = plan.profile.sampling
    flags: Sequence[tuple[str, float | None]] = (
        ("--temp", sampling.temperature),
        ("--top-p", sampling.top_p),
        ("--top-k", sampling.top_k),
        ("--min-p", sampling.min_p),
        ("--presence-penalty", sampling.presence_penalty),
        ("--repeat-penalty", sampling.repeat_penalty),
    )
    return [word for flag, value in flags if value is not None for word in (flag, f"{value:g}")]


def needed_flags() -> list[str]:
    """Every flag garra may pass to an engine: one that lacks any of them cannot serve all profiles."""
    return (
        "--model --alias --host --offline -c -np -b -ub -t -tb --fit -ngl --device --n-cpu-moe -fa --cache-type-k "
        "--cache-type-v --cont-batching --cache-ram --ctx-checkpoints --kv-unified --no-kv-unified --spec-type "
        "--spec-draft-n-max -md -ngld --jinja --reasoning --temp --top-p --top-k --min-p --presence-penalty "
        "--embeddings --reranking --pooling --repeat-penalty -n --no-mmproj --slots --slot-save-path --metrics "
        "--no-ui --log-colors"
    ).split()


def owned_flags(extra_args: Iterable[str]) -> list[str]:
    """The words of `extra_args` that spell a flag garra sets itself."""
    return [word for word in extra_args if word.split("=")[0] in _OWNED]


def flags_of_help(help_text: str) -> frozenset[str]:
    """Every flag that `llama-server --help` lists."""
    entries = re.findall(r"^ {0,1}(-{1,2}[A-Za-z].*)$", help_text, re.MULTILINE)
    return frozenset(flag for entry in entries for flag in re.findall(r"(?<![\w-])-{1,2}[a-zA-Z][\w.-]*", entry))


def unsupported(argv: Sequence[str], supported: frozenset[str]) -> list[str]:
    """Flags of a command line that an engine does not list in its help."""
    return [word for word in argv[1:] if re.fullmatch(r"-{1,2}[a-zA-Z][\w-]*", word) and word not in supported]
