"""The error tree: what went wrong, and a fix one can type.

A class exists only where a caller acts differently. Two facts live on each class: the status an HTTP client
sees and the exit code a shell sees.

Exit codes: 0 done, 1 a bug, 2 wrong usage, 3 configuration, 4 model, 5 engine build, 6 engine start,
7 address or lock taken, 8 garra is not running, 9 network, 130 interrupted.
"""

from __future__ import annotations


class GarraError(Exception):
    """Something a person can act on. `str()` is one line that starts with "cannot" or names the thing."""

    http_status = 500
    exit_code = 1
    code = "internal_error"

    def __init__(self, what: str, *, fix: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


class ConfigError(GarraError):
    """A value or key in a settings layer is wrong."""

    exit_code = 3
    code = "invalid_config"


class BadRequest(GarraError):
    """The client's request cannot be routed as it stands."""

    http_status = 400
    exit_code = 2
    code = "invalid_request"


class Forbidden(GarraError):
    """The guard turned the request away."""

    http_status = 403
    code = "forbidden"


class Unauthorised(GarraError):
    """No key, or one that is not known."""

    http_status = 401
    code = "invalid_api_key"


class NotFound(GarraError):
    """There is no such path."""

    http_status = 404
    code = "not_found"


class TooLarge(GarraError):
    """The body is past the limit."""

    http_status = 413
    code = "request_too_large"


class UnknownModel(GarraError):
    """No profile has this name."""

    http_status = 404
    exit_code = 4
    code = "model_not_found"


class ModelNotPresent(GarraError):
    """The profile exists, its file does not: only `garra up` and `garra pull` download."""

    http_status = 404
    exit_code = 4
    code = "model_not_downloaded"


class BadModel(GarraError):
    """A model file is missing, cut short, not a GGUF, or not what its checksum says."""

    http_status = 503
    exit_code = 4
    code = "bad_model"


class DownloadFailed(GarraError):
    """A source cannot be reached, or a download cannot be finished. What has come is kept."""

    http_status = 502
    exit_code = 9
    code = "download_failed"


class AccessDenied(DownloadFailed):
    """The hub does not give this file to whoever asks so."""

    http_status = 403
    code = "access_denied"


class NotOffered(GarraError):
    """The source has no such model, or more than one that could be meant."""

    http_status = 404
    exit_code = 4
    code = "not_offered"


class Refused(GarraError):
    """garra does not touch this: another format, a name that is no plain path, a hub's answer that makes no sense."""

    http_status = 422
    exit_code = 4
    code = "refused"


class Stopped(GarraError):
    """A person ended it: what has come is kept, unless they said otherwise."""

    http_status = 409
    exit_code = 130
    code = "stopped"


class BuildFailed(GarraError):
    """The engine cannot be built from its sources."""

    exit_code = 5
    code = "build_failed"


class EngineMissing(GarraError):
    """There is no compiled engine."""

    http_status = 503
    exit_code = 5
    code = "engine_missing"


class EngineDown(GarraError):
    """The engine did not start, or died before it answered."""

    http_status = 503
    exit_code = 6
    code = "engine_down"

    def __init__(self, what: str, *, fix: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(what, fix=fix)
        self.retry_after_s = retry_after_s


class EngineDied(EngineDown):
    """The connection to the engine broke before it answered this request."""

    http_status = 502
    code = "engine_died"

    def __init__(self, what: str, *, fix: str | None = None, untouched: bool = False) -> None:
        super().__init__(what, fix=fix)
        self.untouched = untouched
        """No byte of an answer came: asking another engine gives no answer twice."""


class DoesNotFit(EngineDown):
    """The model can never get the memory it needs."""

    code = "does_not_fit"


class QueueFull(EngineDown):
    """Too many wait already."""

    http_status = 429
    code = "queue_full"


class TooMany(EngineDown):
    """This key has asked more often than it may."""

    http_status = 429
    code = "rate_limit_exceeded"


class QueueTimeout(EngineDown):
    """Its turn did not come in time."""

    http_status = 504
    code = "queue_timeout"


class Quarantined(GarraError):
    """This very request killed the engine twice."""

    code = "quarantined"


class ShuttingDown(EngineDown):
    """garra is stopping; nothing new is accepted."""

    code = "shutting_down"


class Taken(GarraError):
    """The address, the runtime folder or the model is in use by somebody else."""

    http_status = 409
    exit_code = 7
    code = "taken"


class AlreadyRunning(Taken):
    """Another garra holds the runtime folder."""


class NotRunning(GarraError):
    """No garra answers on the control socket."""

    exit_code = 8
    code = "not_running"


def of_code(code: str, what: str, fix: str | None = None) -> GarraError:
    """The error another process told of, with the exit code and status of its class."""
    kind = next((kind for kind in _family(GarraError) if kind.code == code), GarraError)
    error = GarraError(what, fix=fix)
    error.http_status, error.exit_code, error.code = kind.http_status, kind.exit_code, kind.code
    return error


def brief(error: Exception) -> str:
    """The first line of what a library's error says, for a message of ours."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _family(kind: type[GarraError]) -> list[type[GarraError]]:
    return [kind, *(member for child in kind.__subclasses__() for member in _family(child))]
