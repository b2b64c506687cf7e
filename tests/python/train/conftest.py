"""Measured steps and exchanges of the tests of moesim calibrate."""

import random

import pytest
from measured_steps import EXCHANGES, LAYOUTS, predicted, predicted_exchange


@pytest.fixture(scope="module")
def steps():
    """Steps of a software that takes 1.7 times the prediction, a further 1.2 on exchanges, and 6 ms."""
    noise = random.Random(3)
    rows = []
    for layout in LAYOUTS:
        compute, exchange, host = predicted(layout)
        ms = 1.7 * (compute + 1.2 * exchange + host) + 6
        rows.append({**layout, "measured_ms": f"{ms * noise.gauss(1, 0.01):.2f}"})
    return rows


@pytest.fixture(scope="module")
def exchanges():
    """Exchanges that take 1.2 times as long as predicted, 1.8 times through NICs."""
    noise = random.Random(4)
    rows = []
    for op, gpus, size in EXCHANGES:
        us = predicted_exchange("b200-sxm", op, gpus, size)["time_us"] * (1.8 if gpus > 8 else 1.2)
        rows.append({"op": op, "gpus": gpus, "bytes": size, "measured_us": f"{us * noise.gauss(1, 0.01):.2f}"})
    return rows
