"""Tails and bands of exchanges among more GPUs than were measured: known answers."""

import sys
from pathlib import Path

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed; the fits need it")
pytest.importorskip("pandas", reason="pandas is not installed; the fits need it")
pytest.importorskip("scipy", reason="scipy is not installed; the fits need it")

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))
from tools.fit import exchange_scatter, exchange_tail, piecewise  # noqa: E402

GIB = 2.0**30
LINKS = {"kind": "nvlink-switch", "port_bytes_per_us": 900e3}
COPY_US, LINK_US = 1e-6, 2e-6  # of a byte of a GPU's own chunk and of one that crosses a link


def ring(gpus, sizes):
    """A chunk is copied once and crosses gpus - 1 links."""
    return sizes / gpus * (COPY_US + (gpus - 1) * LINK_US)


def fewer():
    sizes = 2.0**np.arange(10, 30)
    return [(count, (sizes, ring(count, sizes))) for count in (2, 4)]


@pytest.mark.parametrize("gpus", [8, 64])
def test_a_ring_beyond_the_tables_follows_the_law_at_equal_chunks(gpus):
    sizes = 2.0**np.arange(10, 30)
    knots = exchange_tail.ring_rise("all-gather", LINKS, (sizes, ring(gpus, sizes)), fewer(), gpus)
    assert knots[0][-1] == 16 * GIB
    assert knots[1][:len(sizes)] == pytest.approx(ring(gpus, sizes))
    for size in (GIB, 4 * GIB, 16 * GIB):
        at_four, at_two = (piecewise.evaluate(*exchange_tail.slow_rise(each), size * count / gpus)
                           for count, each in reversed(fewer()))
        expected = at_four + (gpus - 4) * (at_four - at_two) / 2
        assert piecewise.evaluate(*knots, size) == pytest.approx(expected)


def test_a_noisy_last_octave_of_the_law_does_not_reach_beyond_the_tables():
    sizes = 2.0**np.arange(10, 30)
    slow, fast = ring(64, sizes), ring(64, sizes)
    slow[-1] *= 1.1
    fast[-1] *= 0.9
    ends = [exchange_tail.ring_rise("all-gather", LINKS, (sizes, times), fewer(), 64)[1][-1]
            for times in (slow, fast)]
    assert ends[0] == ends[1]


def region(q95):
    return {"by": "bytes", "n": 1, "median_abs": 0.0, "p90_abs": 0.0, "method": "test",
            "regions": [{"region": "all", "from": 0.0, "below": None, "n": 1, "median_abs": 0.0,
                         "p90_abs": 0.0, "q05": 1 / (1 + q95) - 1, "q95": q95}]}


def test_a_band_of_more_gpus_is_wider_beyond_the_tables_too():
    body, tail = region(np.expm1(0.04)), region(np.expm1(0.06))
    ends = {beyond: [np.log1p(each["q95"]) for each in exchange_scatter.with_tail(
        body, tail, GIB, None, 2.0, beyond)["regions"]] for beyond in (1.0, 2.0)}
    assert ends[2.0] == pytest.approx([0.08, 0.10], abs=1e-4)  # rounded; hypot(2 x 0.04, 0.06)
    assert ends[1.0] == pytest.approx([0.08, np.hypot(0.04, 0.06)], abs=1e-4)
