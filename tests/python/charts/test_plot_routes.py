"""Charts of what moesim route writes: losses without times."""

import pytest
from command_line import expect_error, moesim, needs_binary
from plot_options import small_options  # noqa: F401 (a fixture)
import plotter  # noqa: F401 (puts the modules below on the path)

import plot
from chart_data import BadInput


def routed(folder):
    """What moesim route writes: losses without times."""
    path = folder / "route.csv"
    path.write_text("status,router,capacity_factor,failed,residual_loss,padded\nok,top1,1,0.1,0.1,0.1\nok,top1,2,0,0,0.5\n")
    return str(path)


def test_a_chart_of_speed_is_not_drawn_of_losses_alone(tmp_path):
    def options(kind):
        chosen = plot.arguments([kind, routed(tmp_path), "--out", "x.png"])
        chosen.input = chosen.inputs[0]
        return chosen
    with pytest.raises(BadInput, match="--chart speed: this is what moesim route found, losses without speeds: .* --chart loss"):
        plot.figure_of(options("speed"))
    assert len(plot.figure_of(options("sweep")).axes) == 3  # without a word on the chart: that of losses


@needs_binary
def test_the_command_tells_a_chart_that_was_asked_for_from_the_default(tmp_path):
    expect_error(moesim("plot", routed(tmp_path), "--chart", "speed", "--out", tmp_path / "x.png"), 2, "losses without speeds")
    assert moesim("plot", routed(tmp_path), "--out", tmp_path / "x.png").returncode == 0
