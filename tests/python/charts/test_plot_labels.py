"""Styles, legends, labels and notes of charts of speeds and losses."""

import itertools
from pathlib import Path

import pytest
from plot_options import small_options  # noqa: F401 (a fixture)
from plot_sweeps import row, sweep_file
from plotter import handles_of, names_in_legend

import chart_data
import look
import loss_chart
import option_columns
import page
import pareto_chart
import rows
import sweep_chart
import sweep_series


def test_columns_are_named_as_the_field_does():
    assert [option_columns.words(name) for name in ("zero", "expert_parallel")] == ["ZeRO", "expert parallel"]


def test_legends_of_long_labels_stay_on_the_page(tmp_path):
    path = many_lines(tmp_path, [f"top2+a-router-with-a-name-of-{count}-lines-and-its-options" for count in range(8)], (1, 2))
    figure = sweep_chart.draw(path, None, "")
    figure.canvas.draw()
    first, second = (axes.get_legend().get_window_extent() for axes in figure.axes)
    assert second.y0 >= 0 and second.y1 < first.y0 < second.y1 + 0.05 * figure.bbox.height


def test_styles_survive_grey_and_tell_routers_apart():
    routers = ["top1", "top1+ir", "top1+fr+ir", "top2", "top2+ir", "top2+fr+ir", "dense"]
    styles = look.router_styles(routers)
    without_colour = {(style["marker"], str(style["linestyle"]), style.get("markerfacecolor"))
                      for style in styles}
    assert len(without_colour) == len(routers)
    assert styles[1]["color"] == styles[4]["color"]  # one rectification, one colour
    many = [look.style_by_index(index) for index in range(49)]
    assert len({(style["color"], style["marker"]) for style in many}) == 49


def test_colours_of_twelve_lines_differ_and_those_of_flat_lines_too():
    routers = ["top8", "top8+fr", "top8+ir", "top8+fr+ir", "dropless", "expert-choice", "base", "soft", "sinkhorn",
               "bias-balanced:0.001:1000", "hash", "thor"]
    flat = [router in ("dropless", "base", "bias-balanced:0.001:1000") for router in routers]
    styles = look.flat_styles(look.router_styles(routers), flat)
    assert len({style["color"] for style in styles}) == 12
    assert len({(style["marker"], str(style["linestyle"])) for style in styles}) == 12  # in grey
    # As before: few lines, and one flat line beside others.
    assert [look.style_by_index(index)["color"] for index in range(7)] == list(look.COLOURS)
    few = look.flat_styles(look.router_styles(["top1", "dropless"]), [False, True])
    assert few[0]["color"] != few[1]["color"] and few[1]["linestyle"] == look.FLAT_DASHES[0]


def test_no_two_of_many_routers_look_alike_without_markers():
    """More routers than colours: those without one of their own left have dashes; who has one keeps it."""
    routers = ["top1", "top2", "top2+fr", "top2+ir", "top2+fr+ir", "top1+fr", "top1+ir", "expert-choice", "random", "hash:1", "base:greedy",
               "gating-dropout:0", "bias-balanced:0.001:1000", "sinkhorn:greedy", "soft", "dropless"]
    styles = dict(zip(routers, look.router_styles(routers)))
    assert len({(style["color"], str(style["linestyle"])) for style in styles.values()}) == len(routers)
    for router in ("soft", "sinkhorn:greedy"):
        assert styles[router]["color"] == look.router_styles([router])[0]["color"] and styles[router]["linestyle"] == "-"


def test_a_router_looks_the_same_whatever_else_is_drawn():
    def look_of(router, routers):
        style = look.router_styles(routers)[routers.index(router)]
        return style["color"], style["marker"]
    for router in ("dropless", "top2+fr+ir", "expert-choice"):
        alone = look_of(router, [router])
        assert alone == look_of(router, ["top1", "dropless", "base", "top2+ir", "top2+fr+ir", "expert-choice"])
        assert alone == look_of(router, ["expert-choice", "top2+fr+ir", "top2", "dropless"])


def test_one_router_has_one_colour_in_all_kinds_of_charts(tmp_path):
    path = sweep_file(tmp_path, [row("dropless", "", 100, 0, 0),
                                 *(row(router, factor, (90 + len(router)) * factor, 0.1, 0.1 / factor)
                                   for router in ("top2", "top2+fr+ir") for factor in (1, 2))])
    expected = dict(zip(("dropless", "top2", "top2+fr+ir"), look.router_styles(["dropless", "top2", "top2+fr+ir"])))
    speed = sweep_chart.draw(path, None, "").axes[0]
    pareto = pareto_chart.pareto(rows.read([path]), None, page.size_of("", ""), "")
    for legend in (speed.get_legend(), pareto.legends[0]):
        shown = {text.get_text(): handle.get_color() for text, handle in zip(legend.get_texts(), handles_of(legend))
                 if text.get_text() in expected}
        assert shown == {router: style["color"] for router, style in expected.items()}


@pytest.mark.parametrize(("varying", "flat"), [(9, 4), (3, 10), (6, 7), (10, 7), (11, 4), (0, 12)])
def test_flat_lines_have_a_style_each(varying, flat):
    is_flat = [False] * varying + [True] * flat
    styles = look.flat_styles([look.style_by_index(index) for index in range(varying + flat)], is_flat)
    assert len({(style["color"], style["marker"], str(style["linestyle"])) for style in styles}) == varying + flat


def rows_that_lose(router, losses):
    """Rows without bands, of {capacity factor: loss}."""
    return [f"ok,{router},train,16,p,m,{factor},{10 * factor},,,{1000 / factor},{loss},{loss}" for factor, loss in losses.items()]


def test_routers_of_another_k_say_so(tmp_path):
    lines = [*rows_that_lose("top8", {4: 0.5, 8: 0.1}), *rows_that_lose("top8+ir", {4: 0.4, 8: 0.05}),
             *rows_that_lose("sinkhorn", {4: 0.45, 8: 0.07}), *rows_that_lose("base", {4: 0.01}), *rows_that_lose("top1", {4: 0.01}),
             *rows_that_lose("soft", {4: 0})]
    path = sweep_file(tmp_path, lines, top_k=[8] * 6 + [1] * 3)
    series = sweep_series.read_sweep(path)[0]
    # top1 says it by its name; soft mixes all tokens.
    assert [entry.label for entry in series] == ["top8", "top8+ir", "sinkhorn", "base (k = 1)", "top1", "soft"]
    table = rows.read([path])
    figure = pareto_chart.pareto(table, None, page.size_of("", ""), "")
    labels = names_in_legend(figure)
    assert "base (k = 1)" in labels and "top8" in labels
    # One k alone, or one router of several: nothing to say.
    assert chart_data.differing_k([{"router": "base", "top_k": "1"}]) == {}
    assert chart_data.differing_k([{"router": "topk", "top_k": "1"}, {"router": "topk", "top_k": "2"}]) == {}


def test_notes_of_failures_name_their_routers_and_the_dispatch_is_said_in_words(tmp_path):
    lines = [line for at, router in enumerate(("top8", "top8+ir", "sinkhorn", "expert-choice"))  # top8+ir: drawn anew
             for line in rows_that_lose(router, {4: 0.5 + 0.01 * at, 8: 0.1})]
    figure = sweep_chart.draw(sweep_file(tmp_path, lines), None, "")
    notes = [text.get_text() for text in figure.axes[1].texts]
    assert notes == ["failed, from above:\nexpert-choice,\nsinkhorn,\ntop8"]
    assert sweep_chart.subtitle({"dispatch": "index"}, 0) == ""  # the default
    assert "(einsum)" in sweep_chart.subtitle({"dispatch": "einsum"}, 0)


def test_a_long_subtitle_of_the_loss_chart_is_wrapped(tmp_path, monkeypatch):
    path = sweep_file(tmp_path, [row("top1", factor, 100 * factor, 0.1, 0.1) for factor in (1, 2)])
    monkeypatch.setattr(loss_chart, "subtitle", lambda *_: "all that the rows share, " * 12)
    figure = loss_chart.draw(path, "")
    figure.canvas.draw()
    assert all(text.get_window_extent().x1 <= figure.bbox.x1 for text in figure.texts)
    assert min(text.get_window_extent().y0 for text in figure.texts) > figure.axes[0].get_window_extent().y1


def test_labels_of_many_options_stay_inside_the_figure(tmp_path):
    lines = [row("top2", 1, 100, 0.5, 0.4), row("top2", 2, 90, 0.1, 0.1)]
    path = sweep_file(tmp_path, 4 * lines, network=4 * ["fast"] + 4 * ["flows"], slow_gpu=2 * ["none", "none", "3:1.5", "3:1.5"])
    figure = sweep_chart.draw(path, "", "")
    figure.canvas.draw()
    legend = figure.axes[0].get_legend()
    assert len(legend.get_texts()) >= 4
    assert legend.get_window_extent().x1 <= figure.bbox.x1
    # What fails does not depend on the network: one line, named by its k alone.
    notes = [text.get_text() for text in figure.axes[1].texts]
    assert notes == ["top2\nfailed"]


def options_that_fail(folder, shares):
    """A sweep of one router over networks and slow GPUs; `shares` of routes that fail of each."""
    networks, slow_gpus = zip(*(options for options in shares for _ in range(2)))
    return sweep_file(folder, [row("top8", factor, 100, share / factor, share / 2) for share in shares.values() for factor in (1, 2)],
                      network=networks, slow_gpu=slow_gpus)


def test_notes_of_failures_name_what_tells_them_apart(tmp_path, monkeypatch):
    def notes(shares):
        return [text.get_text() for text in sweep_chart.draw(options_that_fail(tmp_path, shares), None, "").axes[1].texts]
    by_slow = {(network, slow): 0.5 if slow == "none" else 0.48 for network in ("fast", "flows") for slow in ("none", "3:1.5")}
    assert notes(by_slow) == ["failed, from above:\nslow gpu none,\nslow gpu 3:1.5"]
    assert notes({key: 0.5 if key == ("fast", "none") else 0.48 for key in by_slow}) == [
        "failed, from above:\ntop8, network\nfast, slow gpu\nnone\nand 1 more"]  # the other line is of three pairs
    # However long, the first has its name.
    monkeypatch.setattr(sweep_chart, "MOST_NOTE_LINES", 0)
    assert notes(by_slow) == ["failed, from above:\nslow gpu none\nand 1 more"]


def test_lines_below_those_of_another_option_say_so(tmp_path):
    """Draws of one routing on several machines differ by 0.2 %: one line of what fails."""
    path = options_that_fail(tmp_path, {("fast", "none"): 0.5, ("flows", "none"): 0.499, ("fast", "3:1.5"): 0.3})
    speed, loss = sweep_chart.draw(path, None, "").axes
    legend = [text.get_text().replace("\n", " ") for text in speed.get_legend().get_texts()][:3]
    assert legend == [f"top8, network {network}, slow gpu {slow}{below}" for network, slow, below in (
        ("fast", "none", " (speed: as network fast, slow gpu 3:1.5)"),
        ("flows", "none", " (speed: as network fast, slow gpu 3:1.5)"), ("fast", "3:1.5", ""))]
    assert [note.get_text() for note in loss.texts] == ["slow gpu none\nfailed", "slow gpu 3:1.5\nfailed"]
    figure = loss_chart.draw(path, "")
    legend = [" ".join(text.get_text().split()) for text in figure.legends[0].get_texts()]
    assert legend == ["network fast, slow gpu none (failed routes, token loss: as network flows, slow gpu none)",
                      "network flows, slow gpu none", "network fast, slow gpu 3:1.5"]


def many_lines(folder, routers, factors):
    """A sweep of routers under names of routing as long as the ones that ship."""
    lines, routings = [], []
    for router, number, (at, factor) in itertools.product(routers, range(3), enumerate(factors)):
        failed = max(0.0, 0.5 - 0.2 * at - 0.01 * number)
        lines.append(row(router, factor, 100 + number, failed, failed / 2))
        routings.append(f"ragged-source:{number}")
    return sweep_file(folder, lines, routing=routings)


@pytest.mark.parametrize("factors", [(1, 1.5, 2), (2,)])
def test_notes_of_what_fails_lie_inside_the_panel(tmp_path, factors):
    # The first note begins at the upper end, the second near the lower one: at 0.5 and 0.01.
    lines = [row("expert-choice", factor, 100, 0.5, 0.4) for factor in factors]
    lines += [row("random", factor, 100, 0.01 / factor, 0.01) for factor in factors]
    for path in (lambda: sweep_file(tmp_path, lines), lambda: many_lines(tmp_path, ["top2", "random"], factors)):
        figure = sweep_chart.draw(path(), None, "")
        figure.canvas.draw()
        panel = figure.axes[1].get_window_extent()
        notes = figure.axes[1].texts
        assert notes
        for note in notes:
            box = note.get_window_extent()
            assert panel.x0 <= box.x0 and box.x1 <= panel.x1, note.get_text()
            assert panel.y0 <= box.y0 and box.y1 <= panel.y1, note.get_text()


def test_the_legends_of_thirty_lines_do_not_overlap(tmp_path):
    path = many_lines(tmp_path, [f"scomoe:0.{digit}:0.25" for digit in range(10)], (1, 2))
    figure = sweep_chart.draw(path, None, "")
    figure.canvas.draw()
    first, second = (axes.get_legend().get_window_extent() for axes in figure.axes)
    assert not first.overlaps(second)
    assert second.y0 >= 0


def test_labels_of_losses_stay_inside_the_figure(tmp_path):
    path = many_lines(tmp_path, ["random", "top2"], (1, 2))
    # "random, routing empty-rank" is a label of 26 letters.
    Path(path).write_text(Path(path).read_text().replace("ragged-source:0", "empty-rank"))
    figure = loss_chart.draw(path, "")
    figure.canvas.draw()
    assert figure.legends[0].get_window_extent().x1 <= figure.bbox.x1


def test_losses_are_drawn_per_router_and_skew(tmp_path):
    lines = [row("top2", factor, 100, failed, loss) for factor, failed, loss in ((1, 0.3, 0.2), (2, 0.1, 0.05), (1, 0.5, 0.45), (2, 0.4, 0.3))]
    path = sweep_file(tmp_path, lines, padded=[0.1, 0.4, 0.3, 0.5], routing=["gaussian:0.1", "gaussian:0.1", "zipf:1", "zipf:1"])
    figure = loss_chart.draw(path, "")
    drawn = [[list(line.get_ydata()) for line in axes.get_lines()] for axes in figure.axes]
    assert drawn == [[[30, 10], [50, 40]], [[20, 5], [45, 30]], [[10, 40], [30, 50]]]
    # One router: it is in the title, and the lines are told apart by what varies.
    assert names_in_legend(figure) == ["routing gaussian:0.1", "routing zipf:1"]
    assert figure.texts[0].get_text() == "top2: loss and padding by capacity factor"


def test_more_lines_than_can_be_told_apart_are_refused(tmp_path):
    path = sweep_file(tmp_path, [row(f"top{k}", 1, 100, 0, 0) for k in range(1, 32)])
    with pytest.raises(chart_data.BadInput, match="31 lines.*30.*--where 'router=top1'"):
        sweep_series.read_sweep(path)


def trained(folder, convention, **columns):
    """Two rows as moesim train writes them: one band for all."""
    lines = [f"ok,top2,train,32,h100,m,{factor},{step},,,{1e6 / step},0.1,0.1" for factor, step in ((1, 100), (2, 200))]
    return sweep_file(folder, lines, capacity_convention=convention, band_level=0.8, step_ms_low=[100 / 1.5, 200 / 1.5],
                      step_ms_likely=[125, 250], step_ms_high=[200, 400], **columns)


@pytest.mark.parametrize("convention,balanced", [("paper", "k"), ("library", "1")])
def test_the_axis_says_what_a_capacity_factor_is_a_multiple_of(tmp_path, convention, balanced):
    path = trained(tmp_path, convention)
    figure = sweep_chart.draw(path, None, None)
    assert figure.axes[1].get_xlabel() == f"capacity factor ({balanced}: balanced load)"
    assert loss_chart.draw(path, None).axes[0].get_xlabel() == figure.axes[1].get_xlabel()
    # The band of train is of all rows together: said, not drawn.
    assert ("Measured speeds: likely 0.8 times these (80 %: 0.5 to 1.5; of a difference: train --baseline)"
            in figure.texts[1].get_text().replace("\n", " "))
    assert not figure.axes[0].collections


def test_training_steps_have_the_band_of_their_speed_over_a_baseline(tmp_path):
    path = trained(tmp_path, "library", baseline="b.csv", speed_over_baseline=[1, 0.5], speed_over_baseline_low=[0.9, 0.4],
                   speed_over_baseline_high=[1.2, 0.7], baseline_level=0.9)
    figure = sweep_chart.draw(path, None, None)
    speed = figure.axes[0]
    band, = speed.collections
    assert {(round(x), round(y)) for x, y in band.get_paths()[0].vertices} == {(1, 9000), (2, 4000), (2, 7000), (1, 12000)}
    legend = " ".join(speed.get_legend().get_texts()[-1].get_text().split())
    assert legend == "90 % band of the speed over that of b.csv: compare with that alone"
    assert "train --baseline" not in figure.texts[1].get_text()
