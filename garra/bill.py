"""What an engine takes of each memory: the words planner, scheduler and screens share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

HOST = "host"
Source = Literal["formula", "engine", "measured"]


@dataclass(frozen=True, slots=True)
class Bill:
    """Bytes by device and by what they are for. Parts that only fill up in use are listed apart."""

    parts: Mapping[str, Mapping[str, int]]
    """Device -> part -> bytes; `host` is one of the devices."""
    grows: Mapping[str, int] = field(default_factory=dict)
    """Host memory that is filled in use and bounded: prompt cache, checkpoints."""
    source: Source = "formula"
    """`formula`, `engine` (its own accounting) or `measured` (what a load really took)."""

    def total(self, device: str) -> int:
        """Bytes on one device; on the host without what grows."""
        return sum(self.parts.get(device, {}).values())

    @property
    def devices(self) -> tuple[str, ...]:
        """All but the host."""
        return tuple(name for name in self.parts if name != HOST)

    @property
    def need(self) -> Need:
        """MiB it takes of a GPU and of the host; what grows in use counts."""
        vram = sum(_mib(self.total(device)) for device in self.devices)
        return Need(vram, _mib(self.total(HOST) + self.growth))

    @property
    def growth(self) -> int:
        """Bytes of host memory that are filled in use."""
        return sum(self.grows.values())


Claim = Mapping[str, int]
"""MiB by device: `gpu0`, `gpu1`, ..., `host`."""


@dataclass(frozen=True, slots=True)
class Need:
    """MiB one engine takes: of one GPU, whichever it is put on, and of the host."""

    vram_mib: int = 0
    ram_mib: int = 0
    why_not: str = ""
    """Set when no plan fits this machine even while nothing else is loaded: what is missing."""
    fix: str = ""

    def on(self, device: str) -> Claim:
        """What it claims when it is put on this device."""
        return {device: self.vram_mib, HOST: self.ram_mib} if self.vram_mib else {HOST: self.ram_mib}


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine is put, and how much it may take there."""

    gpu: int | None = None
    vram_mib: int = 0
    ram_mib: int = 0


def spot(gpu: int | None) -> str:
    """The device's name in claims and budgets."""
    return HOST if gpu is None else f"gpu{gpu}"


def plus(*claims: Claim) -> dict[str, int]:
    """Their sum."""
    total: dict[str, int] = {}
    for claim in claims:
        for device, mib in claim.items():
            total[device] = total.get(device, 0) + mib
    return total


def beyond(claim: Claim, room: Claim) -> dict[str, int]:
    """What of a claim exceeds the room, by device; empty when it fits."""
    return {device: mib - room.get(device, 0) for device, mib in claim.items() if mib > room.get(device, 0)}


def less(room: Claim, claim: Claim) -> dict[str, int]:
    """What is left of the room; below zero where the claim is larger."""
    return {device: mib - claim.get(device, 0) for device, mib in room.items()}


def _mib(n_bytes: int) -> int:
    return -(-n_bytes // (1 << 20))
