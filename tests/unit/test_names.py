"""What file names of a repository say; they are not trusted."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garra.errors import NotOffered
from garra.registry.names import RemoteFile, draft_of, is_plain, pick, projector_of, quant_of, variants
from garra.registry.source import HubSource

QWEN = [
    "Qwen3.5-4B-Q4_K_M.gguf",
    "Qwen3.5-4B-UD-Q4_K_M.gguf",
    "Qwen3.5-4B-UD-Q4_K_XL.gguf",
    "Qwen3.5-4B-IQ4_XS.gguf",
    "BF16/Qwen3.5-4B-BF16-00002-of-00002.gguf",
    "BF16/Qwen3.5-4B-BF16-00001-of-00002.gguf",
    "mmproj-F32.gguf",
    "mmproj-BF16.gguf",
    "mmproj-F16.gguf",
    "mtp-Qwen3.5-4B-Q4_K_M.gguf",
    "imatrix_unsloth.dat",
    "README.md",
]


def files(*names: str) -> list[RemoteFile]:
    return [RemoteFile(name, 100 + n, sha256=f"{n:064x}") for n, name in enumerate(names)]


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("Qwen3.5-4B-Q4_K_M.gguf", "Q4_K_M"),
        ("Qwen3.5-4B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("m.i1-IQ2_XXS.gguf", "IQ2_XXS"),
        ("gpt-oss-20b-mxfp4.gguf", "mxfp4"),
        ("x/Model-F16-00001-of-00003.gguf", "F16"),
        ("model_q8_0.gguf", "q8_0"),
        ("tinyllama.gguf", None),
        ("mistral-7b-v0.3.gguf", None),
    ],
)
def test_the_quantisation_stands_at_the_end_of_a_name(name: str, quant: str | None) -> None:
    assert quant_of(name) == quant


@pytest.mark.parametrize(
    ("wanted", "path"),
    [
        ("Q4_K_M", "Qwen3.5-4B-Q4_K_M.gguf"),
        ("q4_k_m", "Qwen3.5-4B-Q4_K_M.gguf"),
        ("UD-Q4_K_XL", "Qwen3.5-4B-UD-Q4_K_XL.gguf"),
        ("ud-q4_k_m", "Qwen3.5-4B-UD-Q4_K_M.gguf"),
        ("iq4_xs", "Qwen3.5-4B-IQ4_XS.gguf"),
        ("bf16", "BF16/Qwen3.5-4B-BF16-00001-of-00002.gguf"),
    ],
)
def test_quantisations_are_taken_as_people_type_them(wanted: str, path: str) -> None:
    assert pick(HubSource("o/r", quant=wanted), files(*QWEN)).files[0].path == path


def test_shards_are_one_model_in_order() -> None:
    one = pick(HubSource("o/r", quant="BF16"), files(*QWEN))
    assert [file.path[-19:-5] for file in one.files] == ["00001-of-00002", "00002-of-00002"]
    assert one.n_bytes == 104 + 105


@pytest.mark.parametrize(
    ("source", "message", "fix"),
    [
        (HubSource("o/r", quant="Q4_K_XL"), "has no Q4_K_XL", "did you mean UD-Q4_K_XL"),
        (HubSource("o/r", quant="Q9_9"), "has no Q9_9", "it has Q4_K_M"),
        (HubSource("o/r"), "holds 5 models", "name one of them: Q4_K_M"),
        (HubSource("o/r", file="none.gguf"), "has no none.gguf", "it has"),
    ],
)
def test_nothing_is_guessed_and_what_there_is_gets_listed(source: HubSource, message: str, fix: str) -> None:
    with pytest.raises(NotOffered, match=message) as told:
        pick(source, files(*QWEN))
    assert fix in str(told.value.fix)


def test_two_models_of_one_quantisation_must_be_told_apart() -> None:
    with pytest.raises(NotOffered, match="holds 2 models called q8_0") as told:
        pick(HubSource("o/r", quant="q8_0"), files("a-Q8_0.gguf", "b-Q8_0.gguf"))
    assert "a-Q8_0.gguf, b-Q8_0.gguf" in str(told.value.fix)


def test_a_model_with_a_shard_missing_is_not_offered() -> None:
    for names in (["m-Q8_0-00002-of-00002.gguf"], ["m-Q8_0-00001-of-00003.gguf", "m-Q8_0-00003-of-00003.gguf"]):
        with pytest.raises(NotOffered, match="lacks shards"):
            pick(HubSource("o/r", quant="Q8_0"), files(*names))


def test_weights_for_other_programs_are_refused_by_name() -> None:
    with pytest.raises(NotOffered, match=r"only \.bin, \.safetensors, which garra does not load"):
        pick(HubSource("o/r", quant="Q8_0"), files("model.safetensors", "pytorch_model.bin"))


def test_projector_and_draft_are_no_models_but_go_with_one() -> None:
    offered = files(*QWEN)
    assert len(variants(offered)) == 5
    model = pick(HubSource("o/r", quant="Q4_K_M"), offered)
    projector, draft = projector_of(offered), draft_of(offered, model)
    assert projector is not None
    assert projector.path == "mmproj-F16.gguf", "F16 before BF16 before F32"
    assert draft is not None
    assert draft.path.startswith("mtp-")
    assert projector_of(files("a.gguf")) is None
    assert draft_of(files("a.gguf"), model) is None


@pytest.mark.parametrize(
    "path",
    [
        "../x.gguf", "/etc/x.gguf", "a/../b.gguf", "a//b.gguf", "./a.gguf", "a/./b.gguf", "~/a.gguf", "a\\b.gguf",
        "a\0.gguf", "a\n.gguf", "c:a.gguf", "", "a/", "x" * 300 + ".gguf", "/".join("a" * 20) + ".gguf",
        "\u202eflug.gguf", "\ud800.gguf",
    ],
)  # fmt: skip
def test_names_that_are_no_plain_paths_are_not_taken(path: str) -> None:
    assert not is_plain(path)


@given(st.text(max_size=80))
def test_a_plain_name_stays_below_its_folder(path: str) -> None:
    if is_plain(path):
        assert not PurePosixPath(path).is_absolute()
        assert ".." not in PurePosixPath(path).parts


@given(
    st.lists(
        st.text(alphabet="abQ48_KM-/.0123of", max_size=40).map(lambda text: text + ".gguf"), max_size=8, unique=True
    )
)
def test_any_names_give_models_that_hold_each_file_once(names: list[str]) -> None:
    found = [file.path for one in variants(files(*names)) for file in one.files]
    assert len(found) == len(set(found))
