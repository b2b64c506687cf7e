"""The parts of a step have in charts the words that the text tables have, and one colour each."""

import json

import pytest
from command_line import SMALL, needs_binary, succeed
from plotter import handles_of, matplotlib, SIZE

import axes_chart
import breakdown_chart
import rows


STEP = {"sweep": ("simulate", "where the time goes"), "train": ("train", "part of the step")}
OPTIONS = {"sweep": (*SMALL, "--router", "top2+fr+ir", "--capacity-factor", 1),
           "train": ("--model", "mixtral-8x7b", "--gpus", 64, "--pipeline-parallel", 2, "--router", "top2", "--capacity-factor", 1)}


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    path = tmp_path_factory.mktemp("options") / "options.json"
    path.write_text(succeed("options", "--format", "json"))
    return path


@pytest.fixture
def drawn(described, tmp_path, monkeypatch):
    """{part: (colour, hatch)} of the chart of one step of a command, and the step's text."""
    monkeypatch.setenv("MOESIM_OPTIONS", str(described))

    def draw(command):
        path, (single, _) = tmp_path / f"{command}.csv", STEP[command]
        succeed(command, *OPTIONS[command][:-1], "1,2", "--out", path)  # train writes a table of several steps alone
        figure = breakdown_chart.breakdown(rows.read([str(path)]), None, SIZE, "")
        legend = figure.legends[0]
        entries = dict(zip((text.get_text() for text in legend.get_texts()), handles_of(legend)))
        looks = {label: (matplotlib.colors.to_hex(handle.get_facecolor()), handle.get_hatch())
                 for label, handle in entries.items() if isinstance(handle, matplotlib.patches.Patch)}
        return looks, succeed(single, *OPTIONS[command])
    return draw


@needs_binary
@pytest.mark.parametrize("command", ["sweep", "train"])
def test_parts_have_the_words_of_the_text_table(drawn, command):
    looks, text = drawn(command)
    table = text.partition(STEP[command][1])[2].splitlines()[1:]
    words = {line.split("  ")[0] for line in table[:table.index("")]}
    assert len(looks) >= 6 and set(looks) <= words
    assert len(set(looks.values())) == len(looks)


@needs_binary
def test_one_part_has_one_colour_in_all_charts(drawn):
    sweep, _ = drawn("sweep")
    train, _ = drawn("train")
    for name, other in (("attention", "attention"), ("expert FFN", "experts"), ("exposed exchange", "dispatch"),
                        ("optimizer", "optimizer")):
        assert sweep[name] == train[other]


@needs_binary
def test_every_part_of_a_step_has_a_look_of_its_own(described):
    import step_parts
    document = json.loads(described.read_text())
    for names in ([column["name"] for column in document["columns"] if column.get("role") == "part"],
                  document["training_parts"]):
        parts = [step_parts.PARTS[name.removesuffix("_ms")] for name in names]
        assert len({part.words for part in parts}) == len(parts) >= 10
        assert len({part.colour for part in parts}) == len(parts)
        for one, other in zip(parts, parts[1:]):  # beside each other in a bar
            assert one.colour != other.colour


@needs_binary
def test_an_axis_of_a_part_has_its_words(drawn, tmp_path):
    drawn("sweep")
    table = rows.read([str(tmp_path / "sweep.csv")])
    figure = axes_chart.draw(table, "capacity_factor", ["dispatch_combine_ms"], None, None, SIZE, "")
    assert figure.axes[0].get_ylabel() == "permute, unpermute, ms"
    assert ": permute, unpermute by capacity factor" in figure.texts[0].get_text().replace("\n", " ")


@needs_binary
@pytest.mark.parametrize("stages, is_told", [("1", False), ("1,2", True)])
def test_parts_of_one_pipeline_rank_are_told_so(described, tmp_path, monkeypatch, stages, is_told):
    """Of a step of several ranks: the head, which only the last has, is in no mean of them."""
    monkeypatch.setenv("MOESIM_OPTIONS", str(described))
    succeed("train", "--model", "mixtral-8x7b", "--gpus", 64, "--pipeline-parallel", stages, "--micro-batch", "1,2", "--out",
            tmp_path / "t.csv")
    figure = breakdown_chart.breakdown(rows.read([str(tmp_path / "t.csv")]), None, SIZE, "")
    above = " ".join(text.get_text() for text in figure.texts).replace("\n", " ")
    assert ("parts of one pipeline rank of each step: the one that computes longest" in above) == is_told
