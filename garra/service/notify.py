"""Telling systemd how it goes: sd_notify(3) is a datagram to a socket the environment names."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping


class Notifier:
    """Quiet where nobody wants to know. Takes its variables out of the environment: engines need not have them."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        address = environment.pop("NOTIFY_SOCKET", "")
        every_us = environment.pop("WATCHDOG_USEC", "")
        for_pid = environment.pop("WATCHDOG_PID", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        mine = for_pid in ("", str(os.getpid()))
        self.watchdog_s = int(every_us) / 1e6 if every_us.isdigit() and mine else 0.0
        """Signs of health are due this often; 0: nobody waits for them."""

    @property
    def wanted(self) -> bool:
        return bool(self._address)

    def tell(self, **fields: str) -> None:
        """`READY="1"`, `STATUS="..."`. A manager that is gone or slow costs nothing."""
        if not self._address:
            return
        message = "\n".join(f"{name}={value}" for name, value in fields.items())
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(message.encode(), self._address)
