"""The import levels of docs/architecture.md, enforced: words < pure < edges < drivers < root."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "garra"

WORDS, PURE, EDGE, DRIVER, TOP = range(5)
LEVELS = {
    "__init__": WORDS,
    "errors": WORDS,
    "spec": WORDS,
    "ports": WORDS,
    "events": WORDS,
    "tally": WORDS,
    "traffic": WORDS,
    "bill": WORDS,
    "host": WORDS,
    "downloads": WORDS,
    "snapshot": WORDS,
    "tui.words": WORDS,
    "prompts.words": WORDS,
    "prompts.book": PURE,
    "prompts.chain": PURE,
    "prompts.fingerprint": PURE,
    "prompts.worth": PURE,
    "prompts.store": EDGE,
    "prompts.keeper": DRIVER,
    "prompts.warm": DRIVER,
    "tui.keys": PURE,
    "tui.pace": PURE,
    "tui.bits": EDGE,
    "tui.tables": EDGE,
    "tui.view": EDGE,
    "tui.remote": EDGE,
    "tui.terminal": EDGE,
    "tui.live": DRIVER,
    "sensors": EDGE,
    "overview": DRIVER,
    "batch.lines": PURE,
    "batch.window": PURE,
    "batch.files": EDGE,
    "batch.run": DRIVER,
    "bench.words": WORDS,
    "bench.arrivals": PURE,
    "bench.compare": PURE,
    "bench.statistics": PURE,
    "bench.summary": PURE,
    "bench.tap": PURE,
    "bench.texts": PURE,
    "bench.traffic": PURE,
    "bench.workload": PURE,
    "bench.dataset": EDGE,
    "bench.history": EDGE,
    "bench.machine": EDGE,
    "bench.plot": EDGE,
    "bench.target": EDGE,
    "bench.load": DRIVER,
    "bench.session": DRIVER,
    "bench.sizing": DRIVER,
    "engine.argv": PURE,
    "engine.recipe": PURE,
    "planner.memory": PURE,
    "planner.room": PURE,
    "planner.guess": PURE,
    "registry.card": PURE,
    "registry.ggml": PURE,
    "registry.header": PURE,
    "registry.names": PURE,
    "registry.template": PURE,
    "planner.plan": PURE,
    "proxy.access": EDGE,
    "proxy.cors": PURE,
    "proxy.guard": PURE,
    "managed": EDGE,
    "proxy.management": DRIVER,
    "proxy.overflow": PURE,
    "proxy.route": PURE,
    "proxy.head": EDGE,
    "proxy.call": EDGE,
    "proxy.answers": EDGE,
    "proxy.listing": DRIVER,
    "proxy.page": EDGE,
    "service.unit": PURE,
    "service.notify": EDGE,
    "service.manager": EDGE,
    "service.herald": DRIVER,
    "proxy.watching": DRIVER,
    "proxy.inference": DRIVER,
    "apis.bodies": PURE,
    "apis.routes": PURE,
    "proxy.listener": EDGE,
    "apis.errors": PURE,
    "apis.endings": PURE,
    "apis.edits": PURE,
    "apis.mend": PURE,
    "apis.ollama_answers": PURE,
    "apis.ollama_asks": PURE,
    "apis.ollama_lists": PURE,
    "apis.openapi": PURE,
    "apis.passages": PURE,
    "proxy.ollama": DRIVER,
    "proxy.ollama_pull": DRIVER,
    "apis.prepare": PURE,
    "apis.signs": PURE,
    "registry.cards": EDGE,
    "dialogue": WORDS,
    "connect.words": WORDS,
    "connect.clients": PURE,
    "connect.merge": EDGE,
    "connect.files": EDGE,
    "proxy.wire": PURE,
    "registry.source": PURE,
    "supervisor.diagnose": PURE,
    "supervisor.drafting": PURE,
    "supervisor.happenings": PURE,
    "supervisor.model": PURE,
    "supervisor.placement": PURE,
    "supervisor.queue": PURE,
    "supervisor.warmth": PURE,
    "supervisor.records": PURE,
    "supervisor.schedule": PURE,
    "supervisor.stall": PURE,
    "supervisor.machine": PURE,
    "config": EDGE,
    "config_tables": EDGE,
    "hardware": EDGE,
    "package_index": EDGE,
    "paths": EDGE,
    "engine.accounting": EDGE,
    "engine.build": EDGE,
    "engine.devices": EDGE,
    "engine.given": EDGE,
    "engine.needs": EDGE,
    "engine.perplexity": EDGE,
    "engine.toolkit": EDGE,
    "engine.tools": EDGE,
    "gpus": EDGE,
    "ledger": EDGE,
    "logs": EDGE,
    "registry.gguf": EDGE,
    "store": EDGE,
    "engine.client": EDGE,
    "engine.smoke": EDGE,
    "engine.source": EDGE,
    "engine.store": EDGE,
    "feed": EDGE,
    "proxy.forward": EDGE,
    "proxy.journal": EDGE,
    "proxy.metrics": EDGE,
    "proxy.patience": EDGE,
    "proxy.recorder": EDGE,
    "proxy.relay": EDGE,
    "proxy.upstream": EDGE,
    "registry.catalog": EDGE,
    "registry.courier": EDGE,
    "registry.disk": EDGE,
    "registry.hashing": EDGE,
    "registry.hub": EDGE,
    "registry.hubcache": EDGE,
    "registry.ollama": EDGE,
    "registry.transfer": EDGE,
    "registry.store": EDGE,
    "supervisor.bridge": EDGE,
    "supervisor.memory": EDGE,
    "supervisor.process": EDGE,
    "supervisor.runfile": EDGE,
    "supervisor.shield": EDGE,
    "supervisor.tether": EDGE,
    "proxy.control": DRIVER,
    "proxy.server": DRIVER,
    "bundling.format": EDGE,
    "bundling.pack": DRIVER,
    "bundling.unpack": DRIVER,
    "parts": DRIVER,
    "planning": DRIVER,
    "proxy.registry": DRIVER,
    "registry.fetch": DRIVER,
    "registry.requantise": DRIVER,
    "registry.jobs": DRIVER,
    "registry.pull": DRIVER,
    "registry.removal": DRIVER,
    "registry.stores": DRIVER,
    "registry.worker": DRIVER,
    "reload": DRIVER,
    "workshop": DRIVER,
    "tuner.knobs": PURE,
    "tuner.search": PURE,
    "tuner.apply": EDGE,
    "tuner.heat": EDGE,
    "tuner.journal": EDGE,
    "tuner.lab": DRIVER,
    "tuner.materials": DRIVER,
    "tuner.quality": DRIVER,
    "tuner.tune": DRIVER,
    "supervisor.chores": DRIVER,
    "supervisor.fleet": DRIVER,
    "supervisor.lease": DRIVER,
    "supervisor.runner": DRIVER,
    "app": TOP,
    "__main__": TOP,
}
# Modules that do I/O, read a clock or draw at random: not for words and pure files.
IMPURE = frozenset(
    "aiohttp asyncio ctypes fcntl glob httpx huggingface_hub io logging os psutil pydantic pynvml random rich secrets "
    "sqlite3 select shutil socket subprocess tempfile threading time typer uvloop".split()
)
# Heavy libraries and the only places that may import them.
HOMES = {
    "pydantic": ("config", "config_tables"),
    "pydantic_settings": ("config",),
    "aiohttp": (
        "app",
        "batch.run",
        "bench.target",
        "engine.client",
        "proxy.answers",
        "supervisor.bridge",
        "proxy.call",
        "proxy.control",
        "proxy.forward",
        "proxy.inference",
        "proxy.management",
        "proxy.listener",
        "proxy.listing",
        "proxy.ollama",
        "proxy.ollama_pull",
        "proxy.page",
        "proxy.patience",
        "proxy.registry",
        "proxy.relay",
        "proxy.server",
        "proxy.watching",
    ),
    "prometheus_client": ("proxy.metrics",),
    "matplotlib": ("bench.plot",),
    "tomlkit": ("connect.merge", "managed", "tuner.apply"),
    "ruamel": ("connect.merge",),
    "pynvml": ("gpus",),
    "watchfiles": ("app",),
    "rich": ("cli.", "tui."),
    "httpx": ("cli.", "tui.remote", "registry.transfer"),
    "typer": ("cli.",),
    "huggingface_hub": ("registry.hub",),
}


def level_of(module: str) -> int:
    if module.endswith("__init__"):
        return WORDS
    return TOP if module.startswith("cli.") else LEVELS[module]


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imports_of(tree: ast.Module) -> list[str]:
    """Dotted names of everything imported, wherever it stands; TYPE_CHECKING is no loophole."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def violations(module: str, source: str, known: set[str]) -> list[str]:
    """What in this file breaks the rules."""
    own, wrong = level_of(module), []
    for name in imports_of(ast.parse(source)):
        if name.startswith("garra."):
            target = name.removeprefix("garra.")
            if target in known:
                if level_of(target) > own:
                    wrong.append(f"{module} (level {own}) imports {target} (level {level_of(target)})")
                if target.split(".")[0] in ("cli", "app") and not module.startswith(("cli.", "app", "__main__")):
                    wrong.append(f"{module} imports {target}")
                if module.startswith("supervisor.") and target.startswith("proxy."):
                    wrong.append(f"the supervisor does not know the proxy: {module} imports {target}")
                if module.startswith("proxy.") and target.startswith("supervisor."):
                    wrong.append(f"the proxy sees the fleet through its port: {module} imports {target}")
        else:
            library = name.split(".")[0]
            if own <= PURE and library in IMPURE:
                wrong.append(f"{module} is pure and imports {library}")
            if library in HOMES and not module.startswith(HOMES[library]):
                wrong.append(f"{module} imports {library}")
    return wrong


FILES = sorted(PACKAGE.rglob("*.py"))
KNOWN = {name_of(path) for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=[name_of(path) for path in FILES])
def test_imports_go_down_or_sideways(path: Path) -> None:
    assert violations(name_of(path), path.read_text(), KNOWN) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("supervisor.machine", "import asyncio"),
        ("supervisor.machine", "from garra.supervisor.runner import Runner"),
        ("spec", "from garra.engine import argv"),
        ("proxy.server", "from garra.supervisor.fleet import EngineFleet"),
        ("supervisor.fleet", "from garra.proxy.upstream import UpstreamPool"),
        ("engine.build", "import typing\nif typing.TYPE_CHECKING:\n    from garra.app import serve"),
        ("supervisor.runner", "def f():\n    import aiohttp"),
    ],
)
def test_a_deliberate_upward_import_is_found(module: str, source: str) -> None:
    assert violations(module, source, KNOWN)


def test_unit_tests_neither_sleep_nor_patch_garra() -> None:
    for path in (ROOT / "tests" / "unit").glob("*.py"):
        text = path.read_text()
        assert "mock.patch" not in text, path
        assert ".sleep(" not in text.replace("asyncio.sleep(0)", ""), path


def test_files_stay_readable() -> None:
    long = {name_of(path): n for path in FILES if (n := len(path.read_text().splitlines())) > 330}
    assert long == {}
