"""The engine build in use with all that is planned for it: which programs are started, how, and with how much memory.

Another build can take its place while garra runs: what is loaded from then on uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from garra import ledger, paths, planning, store
from garra.bill import HOST, Claim
from garra.config import Config
from garra.engine import store as engines
from garra.engine.argv import server_argv
from garra.planner.room import Margins, Room
from garra.prompts.fingerprint import fingerprint, named_files
from garra.prompts.keeper import kept_for
from garra.prompts.store import PromptStore
from garra.registry import names
from garra.registry.catalog import Catalog
from garra.spec import EngineBuild, LaunchPlan, Policy
from garra.supervisor import memory


class Workshop:
    """Raises EngineMissing when there is no engine at all."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.build: EngineBuild = engines.current()
        self._store = store.Store(paths.state_db())
        self.catalog = Catalog(self._store)
        self.prompts = PromptStore(config.settings.prompt_dir or paths.cache_dir() / "prompts")
        self._ours: Callable[[], Sequence[int]] = lambda: ()
        self._planner = planning.Planner(
            lambda: self.build,
            margins(config),
            ledger.Ledger(self._store),
            detect=lambda: planning.detect(self.build, self._ours()),
            alone=lambda: not self._ours(),
        )

    def plans(self, ours: Callable[[], Sequence[int]]) -> planning.ThreadedPlans:
        """The `Plans` port; `ours` tells the processes of the engines that are up."""
        self._ours = ours
        return planning.ThreadedPlans(self._planner, self.budget, ours, self.catalog)

    def configure(self, config: Config) -> None:
        self._config = config
        self._planner.configure(margins(config))

    def renew(self) -> bool:
        """Look for another current build; whether there is one."""
        found = engines.find_current()
        if found is None or found.stamp == self.build.stamp:
            return False
        self.build = found
        return True

    def policy(self, ours: Sequence[int] = ()) -> Policy:
        settings = self._config.settings
        return Policy(self.budget(ours), settings.drain_s, fifo=settings.swap_order == "fifo")

    def budget(self, ours: Sequence[int] = ()) -> Claim:
        """What all engines may take together: as configured, else what other programs leave, less the margins."""
        settings = self._config.settings
        on_gpu = self.build.backend != "cpu"
        host = planning.detect(self.build, ours)
        room = memory.budget(host, ours, settings.vram_margin_mib, settings.ram_margin_mib, computes_on_gpu=on_gpu)
        if settings.memory_budget_mib is None:
            return room
        given = [device for device in room if device != HOST] or [HOST]
        return room | dict.fromkeys(given, settings.memory_budget_mib)

    def room(self) -> Room:
        """What one engine may take now, beside those that are up."""
        return self._planner.room_now()

    def argv(self, plan: LaunchPlan, address: Path) -> list[str]:
        keeps = plan.profile.persist_prompts != "off" and kept_for(plan.profile)
        folder = self.prompts.folder(plan.profile.name) if keeps else None
        return server_argv(self.build.tool("llama-server"), plan, address, folder)

    def identity(self, plan: LaunchPlan) -> str:
        """Of all that must be equal for an engine to take back what another one's slots held."""
        model, extra = plan.model_path, plan.profile.extra_args
        _, n_shards = names.shard_of(model.name) or (1, 1)
        shards = [model, *(model.with_name(names.shard_name(model.name, n)) for n in range(2, n_shards + 1))]
        content = [plan.profile.sha256] if plan.profile.sha256 and n_shards == 1 else map(_state, shards)
        contents = [*content, *(_state(path) for path in named_files(extra) if path.is_file())]
        argv = server_argv(self.build.tool("llama-server"), plan, Path("-"))
        return fingerprint(argv, "\n".join(contents), plan.engine or self.build.stamp)

    def environment(self, plan: LaunchPlan) -> dict[str, str]:
        return planning.environment(self.build, plan.gpu)

    def close(self) -> None:
        self._store.close()


def _state(path: Path) -> str:
    """Changes with the file's content, as far as that can be told without reading it."""
    seen = path.stat()
    return f"{path} {seen.st_size} {seen.st_mtime_ns}"


def margins(config: Config) -> Margins:
    """What is left free on purpose."""
    return Margins(config.settings.vram_margin_mib, config.settings.ram_margin_mib)
