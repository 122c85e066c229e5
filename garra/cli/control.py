"""The CLI's side of the control socket."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from garra import paths
from garra.errors import EngineDown, GarraError, NotRunning, UnknownModel, of_code

_TIME_LIMIT_S = 10.0
_POLL_S = 0.15
START_LIMIT_S = 20.0
"""From the start of a garra to an answer on its control socket."""

Report = dict[str, Any]


class Control:
    """A running garra. Raises NotRunning where nobody answers; `patient`: an answer may take as long as it likes."""

    def __init__(self, *, patient: bool = False) -> None:
        import httpx  # here, because a garra that becomes the server should not carry it

        self._transport_error = httpx.TransportError
        self._client = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(paths.control_socket(paths.runtime_dir()))),
            base_url="http://garra",
            timeout=None if patient else _TIME_LIMIT_S,
        )

    def status(self, *, closely: bool = False) -> Report:
        """A snapshot; `closely`: with what every slot does."""
        return self._call("GET", f"/garra/v1/status?closely={int(closely)}")

    def profile(self, name: str) -> Report:
        """This profile's part of the status; an alias will do. Raises UnknownModel."""
        for report in self.status()["profiles"]:
            if name == report["engine"]["profile"] or name in report["aliases"]:
                found: Report = report
                return found
        raise UnknownModel(f'no profile is called "{name}" there', fix="garra status lists them")

    def load(self, name: str) -> str:
        """Starts loading; the profile's real name."""
        return str(self._call("POST", f"/garra/v1/profiles/{name}/load")["profile"])

    def load_and_wait(self, name: str, on_progress: Callable[[Report], None]) -> Report:
        """The profile's report when its engine is READY. Raises what keeps it from that."""
        outcome: queue.SimpleQueue[GarraError | None] = queue.SimpleQueue()

        def wait() -> None:
            try:
                Control(patient=True)._call("POST", f"/garra/v1/profiles/{name}/load?wait=1")
                outcome.put(None)
            except GarraError as error:
                outcome.put(error)

        threading.Thread(target=wait, daemon=True).start()  # a daemon: Ctrl-C need not wait for it
        while True:
            try:
                error = outcome.get(timeout=_POLL_S)
            except queue.Empty:
                on_progress(self.profile(name)["engine"])
                continue
            if error is not None:
                raise error
            return self.profile(name)

    def unload(self, name: str) -> str:
        return str(self._call("POST", f"/garra/v1/profiles/{name}/unload")["profile"])

    def pin(self, name: str, pinned: bool) -> str:
        return str(self._call("POST", f"/garra/v1/profiles/{name}/pin", {"pinned": pinned})["profile"])

    @contextlib.contextmanager
    def exclusive(self, on_wait: Callable[[], None]) -> Iterator[None]:
        """The machine without garra's engines, for as long as the `with` lasts. Raises Taken, NotRunning."""
        try:
            with self._client.stream("POST", "/garra/v1/exclusive", timeout=None) as reply:
                if reply.status_code >= 400:
                    error = json.loads(reply.read())["error"]
                    raise of_code(str(error.get("code")), error["message"])
                on_wait()
                lines = reply.iter_lines()  # kept: a reader that is thrown away closes the answer, and that lets go
                while not json.loads(next(lines))["held"]:
                    pass
                yield
        except (self._transport_error, FileNotFoundError, StopIteration):
            raise NotRunning("garra went away", fix="garra up") from None

    def key(self) -> str:
        """Opens the listener to this command, whatever keys there are."""
        return str(self._call("POST", "/garra/v1/key")["key"])

    def warm(self, name: str, label: str, messages: list[Any], tools: list[Any]) -> Report:
        """What was kept."""
        body = {"label": label, "messages": messages, "tools": tools}
        return Control(patient=True)._call("POST", f"/garra/v1/profiles/{name}/warm", body)

    def reload(self) -> Report:
        """What changed."""
        return self._call("POST", "/garra/v1/reload")

    def events(self) -> Iterator[Report]:
        """What happens, for as long as garra runs."""
        return self._stream("/garra/v1/events")

    def traffic(self, *, text: bool) -> Iterator[Report]:
        """The shape of every request that ends, for as long as garra runs; with `text` what it asked, too."""
        return self._stream(f"/garra/v1/traffic?text={int(text)}")

    def _stream(self, path: str) -> Iterator[Report]:
        try:
            with self._client.stream("GET", path, timeout=None) as reply:
                for line in reply.iter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line.removeprefix("data: "))
        except (self._transport_error, FileNotFoundError):
            raise NotRunning("garra is not running", fix="garra up") from None

    def shut_down(self) -> None:
        self._call("POST", "/garra/v1/shutdown")

    def wait_ready(self, name: str, on_progress: Callable[[Report], None]) -> Report:
        """Wait until the profile's engine is READY; its report. Raises EngineDown when it ends up FAILED."""
        while True:
            report = self.profile(name)
            engine = report["engine"]
            on_progress(engine)
            if engine["phase"] == "ready":
                return report
            if engine["phase"] == "failed":
                raise EngineDown(
                    f"{name} did not start ({engine['cause']}): {engine['detail']}", fix=f"garra logs {name}"
                )
            time.sleep(_POLL_S)

    def _call(self, method: str, path: str, body: Report | None = None) -> Report:
        try:
            reply = self._client.request(method, path, json=body)
        except (self._transport_error, FileNotFoundError):
            raise NotRunning("garra is not running", fix="garra up") from None
        told: Report = reply.json()
        if reply.status_code >= 400:
            error = told["error"]
            raise of_code(str(error.get("code")), error["message"])  # the message holds the fix already
        return told


def running() -> Control | None:
    """The running garra, or None."""
    if not paths.control_socket(paths.runtime_dir()).exists():
        return None
    control = Control()
    try:
        control.status()
    except NotRunning:
        return None
    return control


def wait_for_start(still_alive: Callable[[], bool]) -> Control:
    """The control of a garra that is just starting. Raises NotRunning when it ends or does not answer."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and still_alive():
        control = running()
        if control is not None:
            return control
        time.sleep(_POLL_S)
    raise NotRunning("garra did not come up", fix=f"see {paths.server_log()}")
