"""--routing counts:FILE of a file that has less than the model: said, or refused."""

import pytest
from command_line import expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary

# 32 layers, all MoE, of 8 experts.
JOB = ("--gpus", 8, "--expert-parallel", 8, "--router", "top2", "--capacity-factor", 1)
STEP = (*JOB, "--micro-batch", 1, "--sequence-length", 512)
ALL = 32
COMMANDS = {"simulate": (*STEP, "--replicas", 1), "sweep": (*STEP, "--replicas", 1),
            "train": (*STEP, "--global-batch", 8), "route": (*STEP, "--replicas", 1)}
MODEL = ("--model", "mixtral-8x7b")


def table(tmp_path, layers, experts, count=lambda expert: 100):
    path = tmp_path / "counts.csv"
    path.write_text("layer,expert,count\n" + "".join(
        f"{layer},{expert},{count(expert)}\n" for layer in range(layers) for expert in experts), encoding="utf-8")
    return f"counts:{path}"


def ran(command, source):
    return moesim(command, *COMMANDS[command], *MODEL, "--routing", source)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_of_fewer_experts_is_of_another_model(command, tmp_path):
    source = table(tmp_path, ALL, range(4))
    result = ran(command, source)
    assert result.returncode == (1 if command == "sweep" else 2), result.stderr  # a refused row
    for words in ("counts.csv counts 4 experts, the job has 8", "--experts 4",
                  "a row of count 0 for each that got no token, up to expert 7"):
        assert words in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_experts_without_a_row_and_layers_without_counts_are_said(command, tmp_path):
    source = table(tmp_path, 2, (0, 7))
    result = ran(command, source)
    assert result.returncode == 0, result.stderr
    assert f"note: {source}: 32 MoE layers of mixtral-8x7b take its 2 layers in turn\n" in result.stderr
    assert (f"warning: {source} has rows of 2 of the 8 experts that it numbers, in the layer with the fewest: the others "
            "get no token there; rows of count 0 say that this is meant\n") in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_whole_file_and_rows_of_zero_need_no_words(command, tmp_path):
    source = table(tmp_path, ALL, range(8), lambda expert: 0 if expert > 3 else 10)
    result = ran(command, source)
    about = [line for line in result.stderr.splitlines() if "counts.csv" in line]
    assert result.returncode == 0 and not [line for line in about if "token loss is estimated" not in line], result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_layers_that_are_taken_more_often_weigh_more(command, tmp_path):
    """32 = 3 x 10 + 2."""
    noted = "losses are means over 32 layers, which weigh its first 2 layers 11 times, the last 10"
    assert noted in ran(command, table(tmp_path, 3, range(8))).stderr
    assert "losses are means" not in ran(command, table(tmp_path, 2, range(8))).stderr


def test_each_file_of_several_is_said(tmp_path):
    source = table(tmp_path, 1, range(8))
    for command in ("sweep", "train", "route"):
        result = ran(command, f"balanced,{source}")
        assert result.returncode == 0, result.stderr
        assert result.stderr.count("32 MoE layers of mixtral-8x7b take its 1 layer in turn\n") == 1, command


def test_a_trace_of_fewer_layers_is_said_by_train_too(tmp_path):
    counts = tmp_path / "counts.csv"
    counts.write_text("layer,expert,count\n" + "".join(f"{layer},{expert},64\n" for layer in range(2)
                                                       for expert in range(8)), encoding="utf-8")
    succeed("import", counts, "--experts", 8, "--top-k", 2, "--out", tmp_path / "trace")
    result = ran("train", f"trace-repeat:{tmp_path / 'trace'}")
    assert result.returncode == 0, result.stderr
    assert "32 MoE layers of mixtral-8x7b take its 2 layers in turn\n" in result.stderr


def test_a_placement_by_counts_of_another_model_is_refused(tmp_path):
    source = table(tmp_path, 1, range(4)).removeprefix("counts:")
    expect_error(moesim("simulate", *COMMANDS["simulate"], *MODEL, "--expert-placement", f"balanced:{source}"), 2,
                 "it counts 4 experts, the job has 8")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("router", ("random", "hash"))
def test_a_router_that_reads_no_scores_takes_any_file(command, router, tmp_path):
    words = [router if word == "top2" else word for word in COMMANDS[command]]
    balanced = succeed(command, *words, *MODEL, "--routing", "balanced")
    for experts in ((0, 7), range(4)):  # without rows, of another model
        source = table(tmp_path, 2, experts)
        result = moesim(command, *words, *MODEL, "--routing", source)
        assert result.returncode == 0, result.stderr
        assert "--routing has no effect" in result.stderr and "counts.csv" not in result.stderr
        assert result.stdout.replace(source, "balanced") == balanced


def test_beside_a_router_that_reads_them_counts_are_checked(tmp_path):
    words = [word if word != "top2" else "random,top2" for word in COMMANDS["sweep"]]
    result = moesim("sweep", *words, *MODEL, "--routing", table(tmp_path, ALL, range(4)))
    assert result.returncode == 0 and result.stdout.count("counts.csv counts 4 experts") == 1
    result = moesim("sweep", *words, *MODEL, "--routing", table(tmp_path, 2, (0, 7)))
    assert result.returncode == 0 and result.stderr.count("the others get no token there") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_layers_that_the_model_has_not_are_said(command, tmp_path):
    source = table(tmp_path, 40, range(8))
    result = ran(command, source)
    assert result.returncode == 0, result.stderr
    assert f"note: {source}: 32 MoE layers of mixtral-8x7b take the first 32 of its 40 layers\n" in result.stderr
