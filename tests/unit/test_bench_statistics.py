"""Percentiles, tests of difference and arrivals, held against their definitions."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest

from garra.bench import statistics as st
from garra.bench.arrivals import arrivals, replayed
from garra.bench.session import dice


@pytest.mark.parametrize("q", [0, 5, 50, 90, 99, 100])
def test_percentiles_are_numpys(q: int) -> None:
    values = [random.Random(3).random() for _ in range(37)]
    assert st.percentile(values, q) == pytest.approx(float(np.percentile(values, q)))
    assert st.deviation(values) == pytest.approx(float(np.std(values)))


def test_the_rank_test_tells_apart_what_differs() -> None:
    below = random.Random(1)
    a, b = [below.gauss(100, 5) for _ in range(60)], [below.gauss(100, 5) for _ in range(60)]
    assert st.differ_by_rank(a, b) > 0.05
    assert st.differ_by_rank(a, [value * 1.1 for value in b]) < 1e-6
    assert st.differ_by_rank([1.0] * 10, [1.0] * 10) == 1.0
    assert st.differ_by_rank([], [1.0]) == 1.0


def test_the_rank_tests_p_is_uniform_under_no_difference() -> None:
    """At 5 % it is wrong in about 5 % of the cases, ties included."""
    below = random.Random(2)
    wrong = sum(
        st.differ_by_rank([below.randrange(20) for _ in range(20)], [below.randrange(20) for _ in range(25)]) < 0.05
        for _ in range(1000)
    )
    assert 25 <= wrong <= 75


def test_the_interval_of_the_ratio_holds_the_truth() -> None:
    below, held = random.Random(4), 0
    for _ in range(60):
        a = [[below.gauss(100, 10) for _ in range(8)] for _ in range(6)]
        b = [[below.gauss(110, 10) for _ in range(8)] for _ in range(6)]
        interval = st.ratio_of_medians(a, b, below.randrange)
        held += interval.low <= 1.1 <= interval.high
    assert held >= 52


def test_paired_ratios_forget_the_drift_both_share() -> None:
    below, a, b = random.Random(5), [], []
    for number in range(12):
        drift = 1 + number / 4  # the machine slows down to a quarter meanwhile
        a.append(100 * drift * below.gauss(1, 0.02))
        b.append(125 * drift * below.gauss(1, 0.02))
    interval = st.paired_ratio(a, b, below.randrange)
    assert interval.value == pytest.approx(1.25, rel=0.02)
    assert 1.2 < interval.low < interval.high < 1.3


def test_arrivals_have_their_rate() -> None:
    gaps = np.diff(arrivals("poisson", 5.0, 4000, dice(1)("arrivals")))
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.08)  # an exponential's own mark
    assert arrivals("constant", 4.0, 3, dice(1)("x")) == [0.0, 0.25, 0.5]
    assert arrivals("burst", 10.0, 11, dice(1)("x")) == [0.0] * 10 + [1.0]
    assert arrivals("poisson", 1.0, 5, dice(7)("x")) == arrivals("poisson", 1.0, 5, dice(7)("x"))
    assert replayed([10.0, 12.0, 16.0], 2.0) == [0.0, 1.0, 3.0]
