"""Keys: who is let in, to what, how often; and the file they stand in."""

from __future__ import annotations

import hashlib
import stat
import threading
from pathlib import Path

import pytest

from garra import config, managed, paths
from garra.errors import BadRequest, ConfigError, Forbidden, NotOffered, TooMany, Unauthorised
from garra.proxy.access import KEY_PREFIX, Access, given_key
from garra.traffic import ClientKey, Priority


def key(name: str, **more: object) -> ClientKey:
    return ClientKey(name, Priority.NORMAL, digest=hashlib.sha256(f"garra-{name}".encode()).digest(), **more)  # type: ignore[arg-type]


ONE, SCOPED, ADMIN = key("one"), key("scoped", profiles=frozenset({"demo"}), rpm=2), key("boss", admin=True)
LOCKED = Access([ONE, SCOPED, ADMIN], loopback=True, keyless=False)


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def test_a_key_is_known_by_its_hash() -> None:
    assert LOCKED.identify(bearer("garra-one"), "/v1/models") is ONE
    assert LOCKED.identify({"x-api-key": "garra-scoped"}, "/v1/messages") is SCOPED
    assert given_key({"Authorization": "bearer  x "}) == "x"
    assert given_key({"Authorization": "Basic x", "x-api-key": "y"}) == "y"


@pytest.mark.parametrize("headers", [{}, bearer("garra-none"), bearer("any"), bearer("\udcff"), {"x-api-key": ""}])
def test_without_a_known_key_nothing_is_served_but_a_sign_of_life(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthorised) as refusal:
        LOCKED.identify(headers, "/v1/models")
    assert refusal.value.http_status == 401
    assert "garra-none" not in f"{refusal.value.what} {refusal.value.fix}"
    assert LOCKED.identify(headers, "/health") is None


def test_without_keys_loopback_is_open_and_nothing_else() -> None:
    assert Access([], loopback=True, keyless=False).open
    far = Access([], loopback=False, keyless=True)
    assert not far.open
    with pytest.raises(Unauthorised):
        far.identify(bearer("any"), "/v1/models")


def test_keyless_lets_clients_without_a_key_of_ours_in_on_loopback_only() -> None:
    both = Access([ONE], loopback=True, keyless=True)
    assert both.identify({}, "/x") is None
    assert both.identify(bearer("any"), "/x") is None
    assert both.identify(bearer("garra-one"), "/x") is ONE
    with pytest.raises(Unauthorised):
        both.identify(bearer(KEY_PREFIX + "revoked"), "/x")
    with pytest.raises(Unauthorised):
        Access([ONE], loopback=False, keyless=True).identify({}, "/x")


def test_a_scope_is_kept_to() -> None:
    LOCKED.check(SCOPED, "demo", 0.0)
    LOCKED.check(ONE, "turbo_4b", 0.0)
    LOCKED.check(None, "turbo_4b", 0.0)
    with pytest.raises(Forbidden, match="may not use turbo_4b"):
        LOCKED.check(SCOPED, "turbo_4b", 0.0)


def test_requests_a_minute_are_counted_also_across_a_reload() -> None:
    access = Access([SCOPED], loopback=True, keyless=False)
    access.check(SCOPED, "demo", 100.0)
    access.check(SCOPED, "demo", 100.0)
    after = Access([SCOPED], loopback=True, keyless=False).inherit(access)
    with pytest.raises(TooMany) as refusal:
        after.check(SCOPED, "demo", 100.0)
    assert refusal.value.http_status == 429
    assert 1 <= (refusal.value.retry_after_s or 0) <= 31
    after.check(SCOPED, "demo", 131.0)


def test_who_may_manage() -> None:
    near = Access([], loopback=True, keyless=False)
    near.check_management(None)
    for access, who, admin_only in ((near, None, True), (LOCKED, ONE, False), (LOCKED, None, False)):
        with pytest.raises(Forbidden):
            access.check_management(who, always_admin=admin_only)
    LOCKED.check_management(ADMIN, always_admin=True)


# -- the file


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(paths, "config_dir", lambda: tmp_path)
    return tmp_path


def test_a_key_is_kept_as_a_hash_alone(folder: Path) -> None:
    made = managed.create_key("laptop", {"profiles": ["demo"], "rpm": 60})
    assert made.startswith(KEY_PREFIX)
    text = (folder / "managed.toml").read_text()
    assert made not in text
    assert made.removeprefix(KEY_PREFIX) not in text
    assert stat.S_IMODE((folder / "managed.toml").stat().st_mode) == 0o600
    loaded = config.load()
    assert Access(loaded.keys, loopback=True, keyless=False).identify(bearer(made), "/x") is loaded.keys[0]
    assert (loaded.keys[0].name, loaded.keys[0].rpm, sorted(loaded.keys[0].profiles)) == ("laptop", 60, ["demo"])
    assert loaded.origin("keys.laptop.sha256") == str(folder / "managed.toml")
    with pytest.raises(BadRequest, match="already"):
        managed.create_key("laptop", {})
    managed.revoke_key("laptop")
    assert config.load().keys == ()
    with pytest.raises(NotOffered):
        managed.revoke_key("laptop")


def test_writers_at_once_lose_nothing(folder: Path) -> None:
    threads = [threading.Thread(target=managed.create_key, args=(f"k{n}", {})) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.name for one in config.load().keys} == {f"k{n}" for n in range(12)}
    assert sorted(path.name for path in folder.iterdir()) == [".managed.toml.lock", "managed.toml"]


def test_an_alias_is_one_more_name(folder: Path) -> None:
    managed.set_alias("gpt-4o", "demo")
    loaded = config.load()
    assert loaded.profile("gpt-4o") is loaded.profile("demo")
    managed.set_alias("gpt-4o", None)
    with pytest.raises(NotOffered):
        managed.set_alias("gpt-4o", None)
    managed.set_alias("lost", "gone")
    with pytest.raises(ConfigError, match='"lost" stands for "gone"'):
        config.load()


def test_a_broken_file_is_told_not_overwritten(folder: Path) -> None:
    (folder / "managed.toml").write_text("[keys\n")
    with pytest.raises(ConfigError, match="cannot change"):
        managed.create_key("x", {})
    assert (folder / "managed.toml").read_text() == "[keys\n"
