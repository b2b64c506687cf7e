"""Charts of a routing: by layer, and over time."""

import json

import pytest
from plot_options import small_options  # noqa: F401 (a fixture)
import plotter  # noqa: F401 (puts the modules below on the path)

import chart_data
import routing_chart


def routing_result(replicas):
    spread = {"mean": 2, "p05": 1.5, "median": 2, "p95": 2.5, "max": 3}
    return {
        "router": "top2+ir", "experts": 2, "gpus": 4, "expert_parallel": 2, "routing": "zipf:1",
        "tokens_per_gpu": 1000, "replicas": replicas, "capacity_factor": 2,
        "capacity_convention": "paper", "detail": {
            "most_uneven_layer": 1,
            "layers": [{"failed": 0.1, "residual_loss": 0.05, "padded": 0.1,
                        "expert_demand_busiest_over_mean": 1.2, "gpu_rows_busiest_over_mean": 1.1,
                        "expert_demand_share": [0.6, 0.4]},
                       {"failed": 0.2, "residual_loss": 0.07, "padded": 0.2,
                        "expert_demand_busiest_over_mean": 1.8, "gpu_rows_busiest_over_mean": 1.3,
                        "expert_demand_share": [0.1, 0.9]}],
            "replicas": [{"failed": 0.15, "residual_loss": 0.06, "padded": 0.15,
                          "expert_demand_busiest_over_mean": spread,
                          "gpu_rows_busiest_over_mean": spread,
                          "expert_demand_share": [0.25, 0.75]}] * replicas}}


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_routing_is_drawn_by_layer_and_over_time(tmp_path, replicas):
    path = tmp_path / "route.json"
    path.write_text(json.dumps(routing_result(replicas)))
    figure = routing_chart.draw(str(path), "")
    heats = [axes.get_images()[0].get_array() for axes in figure.axes if axes.get_images()]
    # A share of 0.6 of two experts is 1.2 times the mean expert's.
    assert heats[0].tolist() == [[1.2, 0.2], [0.8, 1.8]]
    assert len(heats) == (2 if replicas > 1 else 1)
    if replicas > 1:  # of one replica there is no time to show
        assert heats[1].tolist() == [[0.5] * 3, [1.5] * 3]


def test_given_logits_have_one_layer_and_no_source(tmp_path):
    result = {**routing_result(1), "routing": None, "replicas": None}
    result["detail"]["layers"] = result["detail"]["layers"][:1]
    path = tmp_path / "route.json"
    path.write_text(json.dumps(result))
    figure = routing_chart.draw(str(path), "")
    assert [text.get_text() for text in figure.texts][1] == \
        "capacity factor 2 (paper convention), given logits, 4 GPUs in groups of 2, 1,000 tokens per GPU"
    assert [list(axes.get_xticks()) for axes in figure.axes[:3]] == [[0], [0], [0]]


@pytest.mark.parametrize("padding, name", [("capacity", "padded slots"), ("none", "empty slots")])
def test_slots_that_are_not_sent_are_empty_not_padded(tmp_path, padding, name):
    path = tmp_path / "route.json"
    path.write_text(json.dumps({**routing_result(1), "padding": padding}))
    panels = [axes for axes in routing_chart.draw(str(path), "").axes if axes.get_ylabel() == "%"]
    assert [[text.get_text() for text in axes.get_legend().get_texts()] for axes in panels] == [
        ["failed routes", "token loss", name]]


def test_the_legends_of_a_routing_lie_on_no_line(tmp_path):
    path = tmp_path / "route.json"
    path.write_text(json.dumps(routing_result(3)))
    figure = routing_chart.draw(str(path), "")
    figure.canvas.draw()
    panels = [axes for axes in figure.axes if axes.get_legend()]
    assert len(panels) == 4
    for axes in panels:
        legend = axes.get_legend().get_window_extent()
        assert legend.y0 >= axes.bbox.y1  # above, and left of its neighbour
        assert legend.x1 <= min(axes.bbox.x1 + 0.2 * figure.dpi, figure.bbox.x1)
        others = [other for other in figure.axes if other is not axes]
        assert not any(legend.overlaps(other.get_tightbbox()) for other in others)
        assert not any(legend.overlaps(text.get_window_extent()) for text in figure.texts)


@pytest.mark.parametrize(("routing", "name"), [
    ("zipf:1", "replica"), ("trace:t.json", "replica: the trace's steps in turn"),
    ("trace-repeat:t.json", "replica: the trace's steps in turn")])
def test_replicas_are_not_called_steps(tmp_path, routing, name):
    """Replica r of a trace is step r modulo their number."""
    path = tmp_path / "route.json"
    path.write_text(json.dumps({**routing_result(3), "routing": routing}))
    names = [axes.get_xlabel() for axes in routing_chart.draw(str(path), "").axes if axes.get_xlabel()]
    assert names == ["MoE layer"] * 3 + [name] * 3


def test_a_routing_without_shares_is_refused(tmp_path):
    result = routing_result(1)
    result["detail"]["layers"][0]["expert_demand_share"] = [1]
    path = tmp_path / "route.json"
    path.write_text(json.dumps(result))
    with pytest.raises(chart_data.BadInput, match="shares of experts"):
        routing_chart.draw(str(path), "")
