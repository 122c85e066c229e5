"""Whether the machine holds its clocks down for heat at this moment."""

from __future__ import annotations

import time

from garra import gpus
from garra.sensors import throttle_count

_LOOK_S = 0.5
_HEAT = ("thermal", "hw_thermal", "sw_thermal")


def hot() -> bool:
    """A GPU says so, or a core was slowed within half a second."""
    if any(reason in _HEAT for gpu in gpus.visible(()) for reason in gpu.throttled):
        return True
    before = throttle_count()
    if not before:
        return False
    time.sleep(_LOOK_S)
    return throttle_count() > before
