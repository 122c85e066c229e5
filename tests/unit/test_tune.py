"""A tune with a bench of paper: repeated from its journal, whatever goes wrong, and written into a file with care."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from garra import config, paths
from garra.errors import ConfigError, DoesNotFit, EngineDown
from garra.spec import LaunchPlan, Profile
from garra.store import Store
from garra.tuner import apply, journal
from garra.tuner.knobs import STAGES, Facts, stages
from garra.tuner.lab import Figures
from garra.tuner.search import Rules
from garra.tuner.tune import Result, Tune, as_json, name_of
from tests.fakes import plan_for

DEMO = config.load().profiles["demo"]


class Paper:
    """Bench and materials: speeds by arithmetic, trouble on demand."""

    def __init__(self, *, die_after: int | None = None) -> None:
        self.measured: list[tuple[str, int, bool]] = []
        self.judged: list[str] = []
        self._die_after = die_after

    async def measure(self, plan: LaunchPlan, round_: int, *, bare: bool = False) -> Figures:
        if self._die_after is not None and len(self.measured) >= self._die_after:
            raise KeyboardInterrupt
        profile = plan.profile
        self.measured.append((profile.model, round_, bare))
        if profile.threads == 1:
            raise EngineDown("it died: exit status 1")
        speed = 100.0 + round_ % 3
        speed *= 1.4 if "Q8_0" in profile.model else 2.1 if "Q4_0" in profile.model else 1.0
        speed *= 0.9 if bare else 1.0
        return Figures(speed, 1e4 / speed, speed * profile.slots**0.2, 300.0, 500, 0)

    async def weights(self, kind: str) -> Path:
        return Path(f"/made/{kind}.gguf")

    async def plan(self, profile: Profile) -> LaunchPlan:
        if profile.slots > 4:
            raise DoesNotFit("512 MiB of RAM are missing")
        return plan_for(profile)

    async def divergence(self, profile: Profile) -> float:
        self.judged.append(profile.model)
        return 0.3 if "Q4_0" in profile.model else 0.005


def facts(**more: Any) -> Facts:
    known: dict[str, Any] = {
        "plan": replace(plan_for(DEMO), threads=2, gpu_layers=0), "weights": ("Q8_0", "Q4_0"), "n_layers": 30,
        "n_ctx_train": 8192, "drafts": False, "cores": 2, "performance_cores": None, "streams": 4,
    }  # fmt: skip
    return Facts(**known | more)


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store(paths.state_db())
    yield made
    made.close()


def tune(store: Store, paper: Paper, *, fresh: bool = False) -> Tune:
    made = stages(DEMO, facts(), ("weights", "threads", "slots"))
    kept = journal.begin(store, "demo", "key", fresh=fresh)
    return Tune(DEMO, made, Rules(), "balanced", 4, paper, paper, kept, 4)


async def test_the_winner_is_fast_and_sound_and_everything_else_is_told(store: Store) -> None:
    result = await tune(store, Paper()).run()
    assert dict(result.setting) == {"slots": 4, "weights": "Q8_0"}
    assert result.changes["model"] == (DEMO.model, "file:/made/Q8_0.gguf")
    assert result.kld == 0.005
    told = {(one.stage, name_of(one.setting)): one.verdict for one in result.decisions}
    assert told["weights", "weights=Q4_0"] == "quality"
    assert told["threads", "threads=1 weights=Q8_0"] == "failed"
    assert told["slots", "slots=8 weights=Q8_0"] == "does not fit"
    assert result.ratio is not None
    assert result.ratio.value == pytest.approx(1.4 * 2**0.2 / 0.9, rel=0.01)
    document = as_json(result)
    assert list(document)[-5:] == ["ratio", "ratio_low", "kld", "rejected", "winner"]
    assert document["winner"] == {"slots": 4, "weights": "Q8_0"}
    assert {one["why"] for one in document["rejected"]} >= {"quality", "failed", "does not fit"}
    assert journal.last_result(store, "demo") is not None


@pytest.mark.parametrize("n", [1, 7, 13, 24])
async def test_killed_anywhere_it_goes_on_and_ends_alike(store: Store, n: int) -> None:
    whole: Result = await tune(Store(paths.state_dir() / "other.db"), Paper()).run()
    with pytest.raises(KeyboardInterrupt):
        await tune(store, Paper(die_after=n)).run()
    rest = Paper()
    again = await tune(store, rest).run()
    assert again.resumed >= n
    assert (again.setting, again.kld, len(again.decisions)) == (whole.setting, whole.kld, len(whole.decisions))
    assert len(rest.measured) + n <= len([1 for _ in range(again.n_trials)])
    third = Paper()
    assert (await tune(store, third).run()).resumed == 0  # the last one came to its end
    assert third.measured


async def test_a_fresh_one_forgets(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt):
        await tune(store, Paper(die_after=5)).run()
    assert (await tune(store, Paper(), fresh=True).run()).resumed == 0


def options(stage: str, profile: Profile = DEMO, **more: Any) -> list[dict[str, Any]]:
    made = {one.knob: one for one in stages(profile, facts(**more))}
    return [dict(option) for option in made[stage].options]


def test_knobs_come_in_the_order_that_works_and_fit_the_machine() -> None:
    assert [stage.knob for stage in stages(DEMO, facts())] == list(STAGES)
    assert options("gpu_layers") == []
    on_gpu = replace(facts().plan, gpu=0, gpu_layers=20)
    assert {"gpu_layers": 31} in options("gpu_layers", plan=on_gpu)
    assert options("context") == []
    assert {"context": 16384} in options("context", n_ctx_train=32768)
    assert options("threads") == [{"threads": 1}]
    assert {"threads": 6} in options("threads", cores=8, performance_cores=6)
    assert {one["slots"] for one in options("slots")} == {4, 8}
    assert options("slots", replace(DEMO, slots=16)) == []
    assert options("slots", alone=True) == []
    assert options("cache_type", quantises_cache=False) == []
    assert options("flash_attention", replace(DEMO, cache_type_v="q8_0")) == []
    mtp = options("speculation", replace(DEMO, speculation="mtp", draft_depth=2), drafts=True)
    assert mtp[0] == {"speculation": "none"}
    assert {one["draft_depth"] for one in mtp if one["speculation"] == "mtp"} == {1, 3, 4, 6}
    assert any(one["speculation"] == "draft" for one in options("speculation", replace(DEMO, draft_model="file:/d")))
    assert [stage.knob for stage in stages(DEMO, facts(), ("slots",))] == ["slots"]


def test_comments_and_everything_else_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text("# mine\nport = 8080 # not 11434\n\n[profiles.demo]\nslots = 2   # for two of us\ncontext = 4096\n")
    apply.apply(path, "demo", {"slots": 4, "cache_type_k": "q8_0"}, ["2026-01-01, on a toaster", "1.3x"])
    text = path.read_text()
    assert "# mine" in text
    assert "# not 11434" in text
    assert "# for two of us" in text
    assert "# tuned: 2026-01-01, on a toaster" in text
    assert tomllib.loads(text)["profiles"]["demo"] == {"slots": 4, "context": 4096, "cache_type_k": "q8_0"}
    apply.apply(path, "demo", {"slots": 8}, ["2026-02-02, later"])
    again = path.read_text()
    assert "toaster" not in again
    assert again.count("# tuned: ") == 1
    assert tomllib.loads(again)["profiles"]["demo"]["slots"] == 8
    assert config.load(user_file=path).profiles["demo"].slots == 8


def test_a_file_that_is_not_there_is_made_and_a_broken_one_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "profiles.toml"
    apply.apply(path, "demo", {"slots": 4}, ["now"])
    assert tomllib.loads(path.read_text()) == {"profiles": {"demo": {"slots": 4}}}
    path.write_text("[profiles.demo\n")
    with pytest.raises(ConfigError, match="cannot change"):
        apply.apply(path, "demo", {"slots": 8}, ["now"])
    assert path.read_text() == "[profiles.demo\n"
