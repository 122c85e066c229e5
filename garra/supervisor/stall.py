"""When an engine that gives no bytes is stuck, and when it only takes its time. Pure.

`/health` stays 200 while decode is stuck, so it proves nothing. `/slots` answers within milliseconds even in the middle
of a batch (measured, b11434), and its counters move with every batch and every token. So after `stall_s` without a byte
`/slots` is asked, at most every five seconds. An engine that does not answer twice is stuck, and one whose busy slots
do not move: at once when all of them decode, after the time of several batches when one may be in prefill.
"""

from __future__ import annotations

from garra.snapshot import SlotState

ASK_EVERY_S = 5.0
BATCHES = 5
"""A prefill batch is the longest the counters may rest: so many are waited for, as batches grow slower with depth."""


class StallWatch:
    """The evidence about one running engine."""

    def __init__(self, now: float, batch: int, prompt_s_per_token: float) -> None:
        self._batch = batch
        self._slowest = prompt_s_per_token
        self._activity = -1
        self._quiet_since = now
        self._asked = -ASK_EVERY_S
        self._seen: tuple[SlotState, ...] | None = None
        self._unmoved_since: float | None = None

    def learn(self, n_prompt: int, prompt_ms: float) -> None:
        """A prefill was measured. One as long as a batch says what a batch takes; the slower ones are remembered."""
        if n_prompt >= min(self._batch, 64):
            each_s = prompt_ms / 1e3 / n_prompt
            self._slowest = max(each_s, 0.9 * min(self._slowest, 2 * each_s))

    def patience_s(self, stall_s: float) -> float:
        """Seconds an engine in prefill is allowed without a movement of its counters."""
        return max(stall_s, BATCHES * self._batch * self._slowest)

    def quiet_s(self, now: float) -> float:
        """Seconds since the last piece of an answer."""
        return now - self._quiet_since

    def rest(self, now: float) -> None:
        """Nothing is asked of it, or something came: quiet counts from here."""
        self._quiet_since, self._unmoved_since = now, None

    def should_ask(self, now: float, activity: int, stall_s: float) -> bool:
        """Whether it is time to ask `/slots`, given the count of pieces that came."""
        if activity != self._activity:
            self._activity = activity
            self.rest(now)
        return self.quiet_s(now) >= stall_s and now - self._asked >= ASK_EVERY_S

    def stuck(self, now: float, slots: tuple[SlotState, ...] | None, stall_s: float) -> bool:
        """The verdict, given what `/slots` said; None: it said nothing."""
        self._asked = now
        same = slots is None if self._seen is None else slots == self._seen
        working = slots is None or any(slot.busy for slot in slots)
        if self._unmoved_since is None or not same or not working:
            self._seen, self._unmoved_since = slots, now
            return False
        prefilling = slots is not None and any(slot.busy and not slot.n_decoded for slot in slots)
        wait_s = self.patience_s(min(stall_s, ASK_EVERY_S)) if prefilling else ASK_EVERY_S
        return now - self._unmoved_since >= wait_s
