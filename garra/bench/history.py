"""Runs kept: in `state.db` with every raw value, and as JSON files under the keys `vllm bench serve` writes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from garra import paths
from garra.bench.summary import summary
from garra.bench.words import Cell, Run, Sample, Slo
from garra.errors import BadRequest
from garra.store import Store

FORMAT = 1
_RAW = "garra_run"
_SAMPLE_FIELDS = tuple(field.name for field in fields(Sample))


class History:
    """Reads and writes of one store; every call blocks for its thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def keep(self, run: Run) -> None:
        def write(db: sqlite3.Connection) -> None:
            head = json.dumps(_head(run))
            db.execute(
                "INSERT OR REPLACE INTO bench_runs VALUES (?, ?, ?, ?, ?, ?)",
                (run.id, run.at, run.label, run.engine, run.model, head),
            )
            db.execute("DELETE FROM bench_samples WHERE run = ?", (run.id,))
            rows = [
                (run.id, number, json.dumps(asdict(sample)))
                for number, cell in enumerate(run.cells)
                for sample in cell.samples
            ]
            db.executemany("INSERT INTO bench_samples (run, cell, raw) VALUES (?, ?, ?)", rows)

        self._store.run(write).result()

    def get(self, name: str) -> Run | None:
        """The run of this id, or of this label's newest; `last` is the newest of all, `last-1` the one before."""

        def read(db: sqlite3.Connection) -> Run | None:
            row = _find(db, name)
            if row is None:
                return None
            head = json.loads(row[1])
            samples: list[list[Sample]] = [[] for _ in head["cells"]]
            for number, raw in db.execute("SELECT cell, raw FROM bench_samples WHERE run = ? ORDER BY id", (row[0],)):
                samples[number].append(_sample(json.loads(raw)))
            return _run(head, samples)

        return self._store.run(read).result()

    def all(self) -> list[dict[str, Any]]:
        """Every run without its samples, the newest last."""

        def read(db: sqlite3.Connection) -> list[dict[str, Any]]:
            return [json.loads(head) for (head,) in db.execute("SELECT head FROM bench_runs ORDER BY at, id")]

        return self._store.run(read).result()


def _find(db: sqlite3.Connection, name: str) -> tuple[str, str] | None:
    word, _, back = name.partition("-")
    if word == "last" and (not back or back.isdigit()):
        asked = db.execute(
            "SELECT id, head FROM bench_runs ORDER BY at DESC, id DESC LIMIT 1 OFFSET ?", (int(back or 0),)
        )
    else:
        asked = db.execute(
            "SELECT id, head FROM bench_runs WHERE id = ? OR label = ? ORDER BY at DESC LIMIT 1", (name, name)
        )
    found: tuple[str, str] | None = asked.fetchone()
    return found


@contextmanager
def opened() -> Iterator[History]:
    """The history of this machine, for as long as the `with` lasts."""
    store = Store(paths.state_db())
    try:
        yield History(store)
    finally:
        store.close()


def find(name: str) -> Run:
    """The run in this JSON file, or of this id or label. Raises BadRequest."""
    path = Path(name)
    if path.suffix == ".json" or path.is_file():
        return read_file(path)
    with opened() as history:
        run = history.get(name)
    if run is None:
        raise BadRequest(f'no run is called "{name}"', fix="garra bench list shows them; last is the newest")
    return run


def as_json(run: Run, slo: Slo | None = None) -> dict[str, Any]:
    """The run with vLLM's keys per cell, its raw arrays, and all that is needed to read it back."""
    cells = []
    for cell in run.cells:
        whole = [sample for sample in cell.samples if sample.ending == "ok"]
        arrays = {
            "input_lens": [sample.n_prompt for sample in whole],
            "output_lens": [sample.n_tokens for sample in whole],
            "ttfts": [sample.ttft_s for sample in whole],
            "itls": [sample.itls_s for sample in whole],
            "start_times": [sample.began_s for sample in whole],
            "errors": [sample.error for sample in cell.samples if sample.ending != "ok"],
        }
        cells.append({"model_id": run.model, "backend": run.engine, "date": run.at, **summary(cell, slo), **arrays})
    raw = _head(run) | {"samples": [[asdict(sample) for sample in cell.samples] for cell in run.cells]}
    return {"format": FORMAT, "run": run.id, "tpot": "(last - first) / (output tokens - 1)", "cells": cells, _RAW: raw}


def read_file(path: Path) -> Run:
    """A run written with `-o`. Raises BadRequest."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        raw = told[_RAW]
        return _run(raw, [[_sample(row) for row in samples] for samples in raw["samples"]])
    except OSError as error:
        raise BadRequest(f"cannot read {path}: {error.strerror}", fix="garra bench PROFILE -o FILE.json") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRequest(f"{path} is not a run of garra's: {error!r}", fix="garra bench PROFILE -o FILE.json") from None


def _head(run: Run) -> dict[str, Any]:
    """All but the samples."""
    cells = [
        {
            "workload": cell.workload, "load": cell.load, "concurrency": cell.concurrency, "rate": cell.rate,
            "durations_s": cell.durations_s, "seen": dict(cell.seen),
        }
        for cell in run.cells
    ]  # fmt: skip
    return {
        "id": run.id, "at": run.at, "label": run.label, "host": dict(run.host), "engine": run.engine,
        "model": run.model, "settings": dict(run.settings), "load_ms": run.load_ms, "swap_ms": run.swap_ms,
        "cells": cells,
    }  # fmt: skip


def _run(head: Mapping[str, Any], samples: list[list[Sample]]) -> Run:
    cells = tuple(
        Cell(
            told["workload"], told["load"], told["concurrency"], told["rate"], tuple(mine),
            tuple(told["durations_s"]), told["seen"],
        )
        for told, mine in zip(head["cells"], samples, strict=True)
    )  # fmt: skip
    return Run(
        head["id"], head["at"], head["label"], head["host"], head["engine"], head["model"], head["settings"], cells,
        tuple(head["load_ms"]), tuple(head["swap_ms"]),
    )  # fmt: skip


def _sample(raw: Mapping[str, Any]) -> Sample:
    known = {name: raw[name] for name in _SAMPLE_FIELDS if name in raw}
    return Sample(**known | {"stamps_s": tuple(raw["stamps_s"])})
