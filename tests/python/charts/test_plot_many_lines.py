"""Speeds and losses of more lines than one panel can tell apart."""

import json

import pytest
from plot_options import document
from plotter import names_in_legend

import plot
import sweep_chart


COLUMNS = ("status", "model", "profile", "router", "gpus", "expert_parallel", "mode", "capacity_factor", "global_batch", "fidelity",
           "step_ms", "tokens_per_s_per_gpu", "failed", "residual_loss", "padded", "fits_memory")
FOLLOWING = {"gpus": "32, or the ranks of a trace", "expert_parallel": "as many as divide both", "global_batch": "what one step gives",
             "fidelity": "auto"}


@pytest.fixture(autouse=True)
def options(tmp_path, monkeypatch):
    described = document(options=COLUMNS[1:10], results=("status", *COLUMNS[10:]))
    for option in described["options"]:
        option["default"] = FOLLOWING.get(option["column"], "x")
    (tmp_path / "options.json").write_text(json.dumps(described))
    monkeypatch.setenv("MOESIM_OPTIONS", str(tmp_path / "options.json"))


def sweep(folder, gpus, routers=("top8", "top8+fr+ir", "dropless"), modes=("train",)):
    lines = [",".join(COLUMNS)]
    for count in gpus:
        for mode in modes:
            for place, router in enumerate(routers):
                for factor in (0.5, 1, 2) if router != "dropless" else ("",):
                    step = 100 * float(factor or 1.5) + count + place + 10 * (mode == "train")
                    loss = (0.2 + 0.01 * step) / float(factor) / 10 if factor else 0
                    lines.append(",".join(map(str, (
                        "ok", "m", "p", router, count, min(count, 8), mode, factor, count, "tokens" if count < 64 else "counts",
                        step, 1e6 / step, loss, loss / 2, 0.1, "true"))))
    path = folder / "s.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def draw(monkeypatch, *words):
    """The figure that the plotter would write."""
    figures = []
    monkeypatch.setattr(plot, "save", lambda figure, path: figures.append(figure))
    assert plot.main([*words, "--out", "x.svg"]) == 0
    return figures[0]


def legend_of(figure):
    return names_in_legend(figure)


def titles_of(figure):
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible() and axes.get_title(loc="left")]


def test_many_numbers_of_gpus_have_a_panel_each(tmp_path, monkeypatch):
    counts = [2**power for power in range(10)]
    figure = draw(monkeypatch, "sweep", sweep(tmp_path, counts))
    assert titles_of(figure) == [f"GPUs {count}" for count in counts]
    assert legend_of(figure) == ["top8", "top8+fr+ir", "dropless"]
    assert {axes.get_ylabel() for axes in figure.axes} == {"", "speed, tokens/s per GPU"}
    texts = " ".join(" ".join(text.get_text() for text in figure.texts).split())
    assert texts.startswith("m on p: speed by capacity factor") and "token loss: --chart loss" in texts
    figure = draw(monkeypatch, "loss", sweep(tmp_path, counts))
    assert len(titles_of(figure)) == 10 and {axes.get_ylabel() for axes in figure.axes} == {"", "token loss, %"}
    figure.canvas.draw()
    panels = [axes.get_window_extent() for axes in figure.axes]
    assert all(panel.height > 0.5 * panel.width for panel in panels)


def test_a_few_numbers_of_gpus_have_speed_above_loss(tmp_path, monkeypatch):
    path = sweep(tmp_path, (8, 16, 64), ("top1", "top1+ir", "top2", "top2+ir", "dropless"))
    figure = draw(monkeypatch, "sweep", path)
    assert titles_of(figure) == ["GPUs 8", "GPUs 16", "GPUs 64"] and len(figure.axes) == 6
    assert [axes.get_ylabel() for axes in figure.axes[::3]] == ["speed, tokens/s per GPU", "token loss, %"]
    assert len([axes for axes in draw(monkeypatch, "loss", path).axes if axes.get_visible()]) == 9
    figure.canvas.draw()
    assert figure.legends[0].get_window_extent().y0 >= 0


def test_the_panels_are_of_the_option_that_varies_most(tmp_path, monkeypatch):
    figure = draw(monkeypatch, "sweep", sweep(tmp_path, (8, 16, 64), modes=("train", "prefill")))
    assert titles_of(figure) == ["GPUs 8", "GPUs 16", "GPUs 64"]
    assert legend_of(figure)[:2] == ["top8, mode train", "top8+fr+ir, mode train"]
    figure = draw(monkeypatch, "sweep", sweep(tmp_path, range(1, 7), ("top1",), modes=[f"m{at}" for at in range(10)]))
    assert titles_of(figure) == [f"mode m{at}" for at in range(10)]


def test_twelve_lines_and_routers_alone_keep_one_panel(tmp_path, monkeypatch):
    figure = draw(monkeypatch, "sweep", sweep(tmp_path, (8, 16, 32, 64)))
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    # What goes with the GPUs is no part of a label.
    assert len(figure.axes) == 2 and legend[:3] == ["top8, GPUs 8", "top8+fr+ir, GPUs 8", "dropless, GPUs 8"]
    texts = " ".join(" ".join(text.get_text() for text in figure.texts).split())
    assert "also differ" not in texts and "fidelity" in texts
    figure = draw(monkeypatch, "sweep", sweep(tmp_path, (8,), [f"top{k}" for k in range(1, 21)]))
    assert len(figure.axes) == 2 and len(sweep_chart.read_sweep(str(tmp_path / "s.csv"))[0]) == 20


@pytest.mark.parametrize("words, message", [
    ((), "34 lines, and more than 12 cannot be distinguished: choose some with --where, such as --where 'gpus=1'"),
    (("--measured", "m.csv"), "34 lines, and more than 12 cannot be distinguished beside measured points: choose some")])
def test_lines_that_no_panels_hold_are_refused(tmp_path, capsys, words, message):
    path = sweep(tmp_path, range(1, 18), ("top1", "top2"))
    assert plot.main(["sweep", path, *words, "--out", str(tmp_path / "x.svg")]) == plot.EXIT_USAGE
    assert message in capsys.readouterr().err
