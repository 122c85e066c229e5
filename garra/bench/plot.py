"""Pictures of a run: how TTFT and ITL are distributed, and throughput over concurrency."""

from __future__ import annotations

from pathlib import Path

from garra.bench.summary import summary
from garra.bench.words import Run
from garra.errors import BadRequest


def draw(run: Run, path: Path) -> None:
    """Write the picture; .png, .svg or .pdf by its name. Raises BadRequest without matplotlib."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise BadRequest(f"cannot draw into {path.name}", fix="a name that ends in .png, .svg or .pdf")
    try:
        import matplotlib as mpl
    except ImportError:
        raise BadRequest("matplotlib, which draws, is not installed", fix=".venv/bin/pip install matplotlib") from None
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    for cell in run.cells:
        whole = [sample for sample in cell.samples if sample.ending == "ok"]
        ttfts = sorted(sample.ttft_s * 1e3 for sample in whole if sample.ttft_s is not None)
        itls = sorted(gap * 1e3 for sample in whole for gap in sample.itls_s)
        for axes, values in ((left, ttfts), (middle, itls)):
            if values:
                axes.step(
                    values, [(place + 1) / len(values) for place in range(len(values))], where="post", label=cell.name
                )
    for axes, title in ((left, "TTFT ms"), (middle, "ITL ms")):
        axes.set(title=f"{title}, part of the values up to x", xlabel=title, ylim=(0, 1))
        if axes.lines:
            axes.legend()
    loops: dict[str, list[tuple[float, float]]] = {}
    for cell in run.cells:
        figures = summary(cell)
        load = cell.concurrency if cell.concurrency is not None else cell.rate
        if load is not None and figures["output_throughput"] is not None:
            loops.setdefault(cell.workload, []).append((load, figures["output_throughput"]))
    for workload, points in loops.items():
        points.sort()
        right.plot([x for x, _ in points], [y for _, y in points], marker="o", label=workload)
    closed = all(cell.concurrency is not None for cell in run.cells)
    right.set(title="output tok/s", xlabel="clients at once" if closed else "requests per second", ylim=(0, None))
    if right.lines:
        right.legend()
    figure.suptitle(f"{run.model} on {run.engine} ({run.at})")
    try:
        figure.savefig(path)
    except OSError as error:
        raise BadRequest(f"cannot write {path}: {error.strerror}", fix="choose another path") from None
    finally:
        pyplot.close(figure)
