"""Percentiles, and whether two sets of values differ: by rank, and by how much. Pure, seeded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from garra.bench.words import Below

Groups = Sequence[Sequence[float]]
"""Values by round: those of one round share what the machine did meanwhile."""
RESAMPLES = 1000
_EXACT = 100


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile, 0 to 100, linear between neighbours, as numpy and vLLM compute it."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    place = (len(ordered) - 1) * q / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    return percentile(values, 50)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of the values themselves (divided by n), as vLLM reports it."""
    if not values:
        return math.nan
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / len(values))


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the range its resamples fall into."""

    value: float
    low: float
    high: float


def ratio_of_medians(a: Groups, b: Groups, below: Below, *, confidence: float = 0.95) -> Interval:
    """median(b) / median(a), with a bootstrap interval that resamples rounds, then values within them.

    Source: the hierarchical bootstrap of Davison and Hinkley, Bootstrap Methods (1997), 3.8.
    """
    ratios = sorted(_ratio(median(_resampled(b, below)), median(_resampled(a, below))) for _ in range(RESAMPLES))
    whole = _ratio(median(_flat(b)), median(_flat(a)))
    outside = (1 - confidence) / 2 * 100
    return Interval(whole, percentile(ratios, outside), percentile(ratios, 100 - outside))


def paired_ratio(a: Sequence[float], b: Sequence[float], below: Below, *, confidence: float = 0.95) -> Interval:
    """The geometric mean of b[i] / a[i], for pairs measured one right after the other; interval by resampling pairs."""
    logs = [math.log(after / before) for before, after in zip(a, b, strict=True)]
    n = len(logs)
    means = sorted(math.exp(mean([logs[below(n)] for _ in range(n)])) for _ in range(RESAMPLES))
    outside = (1 - confidence) / 2 * 100
    return Interval(math.exp(mean(logs)), percentile(means, outside), percentile(means, 100 - outside))


def differ_by_rank(a: Sequence[float], b: Sequence[float]) -> float:
    """The two-sided p of the Mann-Whitney test that neither is larger: exact for few values without ties, else by the
    normal approximation, ties corrected.

    Source: Mann and Whitney (1947); tie correction as in Lehmann, Nonparametrics (1975).
    """
    n_a, n_b = len(a), len(b)
    if not n_a or not n_b:
        return 1.0
    ranks, ties = _ranks([*a, *b])
    rank_sum = math.fsum(ranks[:n_a])
    u = rank_sum - n_a * (n_a + 1) / 2
    if not ties and n_a * n_b <= _EXACT:
        return _exact_p(n_a, n_b, min(u, n_a * n_b - u))
    n = n_a + n_b
    variance = n_a * n_b / 12 * ((n + 1) - ties / (n * (n - 1))) if n > 1 else 0.0
    if variance <= 0:
        return 1.0
    z = max(0.0, abs(u - n_a * n_b / 2) - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


def _exact_p(n_a: int, n_b: int, u: float) -> float:
    """The probability of a U this small or smaller, on either side, if all orders are equally likely."""
    ways = [[[0] * (n_a * n_b + 1) for _ in range(n_b + 1)] for _ in range(n_a + 1)]
    for i in range(n_a + 1):
        for j in range(n_b + 1):
            if not i or not j:
                ways[i][j][0] = 1
                continue
            for value in range(i * j + 1):  # the largest is of a, and above all of b, or it is of b
                ways[i][j][value] = (ways[i - 1][j][value - j] if value >= j else 0) + ways[i][j - 1][value]
    return min(1.0, 2 * sum(ways[n_a][n_b][: math.floor(u) + 1]) / math.comb(n_a + n_b, n_a))


def _ranks(values: Sequence[float]) -> tuple[list[float], float]:
    """Each value's rank, ties sharing theirs; and the sum of t^3 - t over ties."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks, ties, at = [0.0] * len(values), 0.0, 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for place in range(at, end + 1):
            ranks[order[place]] = (at + end) / 2 + 1
        t = end - at + 1
        ties += t**3 - t
        at = end + 1
    return ranks, ties


def _resampled(groups: Groups, below: Below) -> list[float]:
    """As many rounds, drawn with replacement, and of each as many values."""
    drawn: list[float] = []
    for _ in groups:
        group = groups[below(len(groups))]
        drawn += [group[below(len(group))] for _ in group]
    return drawn


def _flat(groups: Groups) -> list[float]:
    return [value for group in groups for value in group]


def _ratio(above: float, under: float) -> float:
    return above / under if under else math.inf if above else 1.0
