"""Layers, origins, and errors that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from garra import config, paths
from garra.errors import ConfigError, UnknownModel


def write_user(text: str) -> Path:
    path = paths.user_profiles()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def complaint(flags: dict[str, object] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        config.load(flags)
    assert caught.value.fix
    return caught.value.what


def test_shipped_profiles_are_valid_and_complete() -> None:
    loaded = config.load()
    assert set(loaded.profiles) == {"turbo_4b", "balanced_9b", "cpu_fallback", "demo"}
    turbo = loaded.profiles["turbo_4b"]
    assert (turbo.speculation, turbo.draft_depth, turbo.context, turbo.slots) == ("mtp", 2, 32768, 2)
    assert (turbo.cache_type_k, turbo.cache_type_v, turbo.flash_attention) == ("q8_0", "q8_0", "on")
    assert loaded.profiles["cpu_fallback"].batch == 256


def test_later_layers_win_and_origins_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_user("port = 5000\n[profiles.demo]\nslots = 3\ncontext = 'short'\n")
    monkeypatch.setenv("GARRA_PROFILES__DEMO__SLOTS", "5")
    loaded = config.load({"port": 6000})
    demo = loaded.profiles["demo"]
    assert (loaded.settings.port, demo.slots, demo.context, demo.batch) == (6000, 5, 4096, 128)
    assert loaded.origin("port") == "flag"
    assert loaded.origin("profiles.demo.slots") == "environment"
    assert loaded.origin("profiles.demo.context") == str(path)
    assert loaded.origin("profiles.demo.batch") == "shipped profiles.toml"
    assert loaded.origin("profiles.demo.stop_grace_s") == "default"


def test_mode_decides_slots_unless_they_are_given() -> None:
    many = config.load({"profiles": {"demo": {"mode": "high_throughput"}}})
    assert many.profiles["demo"].slots == 8
    given = config.load({"profiles": {"demo": {"mode": "high_throughput", "slots": 3}}})
    assert given.profiles["demo"].slots == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[profiles.demo]\ncontxt = 5", 'profiles.demo.contxt: unknown key, did you mean "context"?'),
        ("prot = 5", 'prot: unknown key, did you mean "port"?'),
        ("[profiles.demo]\ncontext = 'big'", "profiles.demo.context: 'big' is not one of short, medium, long"),
        ("[profiles.demo.sampling]\ntemprature = 1", 'did you mean "temperature"?'),
        ("[profiles.demo]\nextra_args = ['-ngl', '5']", "-ngl is set by garra itself"),
        ("[profiles.mine]\ncontext = 4096", "profiles.mine: a model is needed"),
        ("[profiles.demo]\nubatch = 5000", "ubatch 5000 is larger than batch 128"),
        ("[profiles.demo]\nflash_attention='off'\ncache_type_v='q8_0'", 'needs flash_attention = "on"'),
        ("[profiles.demo]\nmodel = 'http://x'", 'cannot use model "http://x"'),
        ("[profiles.demo]\naliases = ['turbo_4b']", '"turbo_4b" names both'),
        ("[profiles.'Bad Name']\nmodel = 'file:/x.gguf'", 'profile name "Bad Name"'),
        ("this is not toml", "cannot read"),
    ],
)
def test_a_wrong_line_is_named(text: str, said: str) -> None:
    path = write_user(text)
    told = complaint()
    assert said in told
    assert (
        str(path) in told
        or "names both" in told
        or "larger than" in told
        or "profile name" in told
        or ("needs flash" in told or "required" in told)
    )


def test_a_wrong_environment_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GARRA_PORT", "eleven")
    assert "port: Input should be a valid integer" in complaint()
    assert "[environment]" in complaint()


def test_stray_variables_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GARRA_PROT", "1")
    monkeypatch.setenv("GARRA_PROFILES__DEMO__SLOTS", "1")
    stray = config.stray_environment()
    assert "GARRA_PROT (did you mean GARRA_PORT?)" in stray
    assert not any("PROFILES" in variable for variable in stray)


def test_profiles_are_found_by_name_and_alias() -> None:
    loaded = config.load({"profiles": {"demo": {"aliases": ["gpt-4o-mini"]}}})
    assert loaded.profile("gpt-4o-mini").name == "demo"
    with pytest.raises(UnknownModel) as caught:
        loaded.profile("turbo4b")
    assert "did you mean turbo_4b?" in str(caught.value.fix)
    assert "demo" in str(caught.value.fix)
