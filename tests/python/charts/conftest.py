"""Sweeps that several tests of charts draw."""

import plot_rows
import pytest
from plot_sweeps import row, sweep_file


@pytest.fixture
def two_routers(tmp_path):
    return sweep_file(tmp_path, [row("top1", 2, 200, 0.01, 0.01), row("top1", 1, 100, 0.05, 0.05),
                                 row("top1+ir", 1, 110, 0.05, 0.02),
                                 row("top1+ir", 2, 205, 0.01, 0.005),
                                 row("top9", 1, 1, "", "", status="refused")])


@pytest.fixture
def twelve(tmp_path):
    """12 routers over 3 numbers of GPUs."""
    return plot_rows.sweep(tmp_path / "twelve.csv", [plot_rows.row(f"top{k}", gpus, step=100 + 10 * k + gpus)
                                                     for k in range(1, 13) for gpus in (8, 16, 64)])
