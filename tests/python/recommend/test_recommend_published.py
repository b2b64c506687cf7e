"""Three published training jobs: the five that `recommend` finds are the best five of all candidates, each simulated."""

import csv

import pytest
from command_line import as_rows, needs_binary

pytestmark = [needs_binary, pytest.mark.slow]
SIZES = ("tensor_parallel", "context_parallel", "pipeline_parallel", "expert_parallel", "expert_tensor_parallel",
         "micro_batch", "dispatcher", "ep_overlap")
# Model, GPUs, precision, dispatcher, graphs and batch as the configurations of Megatron-Bridge have them.
QUESTIONS = {
    "Qwen3-30B on 16 H100": (
        "--model", "qwen3-30b-a3b", "--gpus", 16, "--precision", "fp8-current", "--global-batch", 512),
    "GPT-OSS on 64 H100": (
        "--model", "gpt-oss-120b", "--gpus", 64, "--global-batch", 1280, "--micro-batch", "1,2,4",
        "--expert-tensor-parallel", 1),
    "DeepSeek-V3 on 256 GB200": (
        "--model", "deepseek-v3", "--gpus", 256, "--profile", "gb200", "--precision", "mxfp8", "--dispatcher",
        "hybridep", "--ep-overlap", "on,off", "--cuda-graphs", "layers", "--global-batch", 4096, "--mtp", 1,
        "--memory-share", 0.95, "--tensor-parallel", 1, "--context-parallel", 1, "--micro-batch", "1,2",
        "--pipeline-parallel", "2,4,8", "--expert-parallel", "16,32,64", "--recompute", "none/mla_up_proj/full"),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_best_five_are_the_best_five(question, tmp_path):
    every = tmp_path / "all.csv"
    words = ("recommend", *QUESTIONS[question])
    rows = as_rows(*words, "--all", every, timeout=1500)
    with open(every, newline="", encoding="utf-8") as file:
        candidates = list(csv.DictReader(file))
    fitting = [row for row in candidates if row["fits_memory"] == "true"]
    assert len(candidates) > 1000 and fitting
    best = []
    for row in sorted(fitting, key=lambda row: float(row["step_ms"])):
        if all(any(row[key] != other[key] for key in SIZES) for other in best):
            best.append(row)
    assert [(row["step_ms"], *(row[key] for key in SIZES)) for row in rows] == [
        (row["step_ms"], *(row[key] for key in SIZES)) for row in best[:5]]
    for row in rows:
        twins = [other for other in fitting if all(other[key] == row[key] for key in SIZES)
                 and float(other["step_ms"]) <= 1.01 * float(row["step_ms"])]
        assert int(row["twins"]) == len(twins) - 1
