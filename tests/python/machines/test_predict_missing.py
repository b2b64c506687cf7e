"""What an operation of predict still needs, by the names of its options; in a file by those of its columns."""

import pytest
from command_line import expect_error, moesim, needs_binary

pytestmark = needs_binary


@pytest.mark.parametrize(("words", "said"), [
    (("gemm",), "--op gemm: --m is missing; it needs --m, --n, --k"),
    (("gemm", "--m", 8, "--k", 8), "--op gemm: --n is missing; it needs --m, --n, --k"),
    (("attention", "--batch", 1), "--op attention: --sequence is missing; it needs --batch, --sequence, --heads, --kv-heads, --head-dim"),
    (("memory",), "--op memory: --bytes is missing; it needs --bytes"),
    (("permute",), "--op permute: --tokens is missing; it needs --tokens, --hidden, --k"),
    (("expert-ffn",), "--op expert-ffn: --rows is missing; it needs --rows, --hidden, --ffn, --experts"),
    (("all-to-all",), "--op all-to-all: --gpus is missing; it needs --gpus, --bytes"),
    (("all-to-all", "--cluster", "dgx-a100", "--gpus", 16),
     "--op all-to-all: --bytes is missing; it needs --gpus, --bytes, or a matrix on a cluster"),
    (("all-to-all", "--cluster", "dgx-a100"), "--op all-to-all: --gpus is missing; it needs --gpus, --bytes, or a matrix"),
    (("gemm", "--bytes", 7), "--op gemm: takes no --bytes; it takes --m, --n, --k, --dtype"),
    (("all-to-all", "--gpus", 8, "--bytes", 7, "--dtype", "fp8"), "--op all-to-all: takes no --dtype; it takes --gpus, --bytes, --nccl"),
    (("combine", "--dispatcher", "deepep", "--row-format", "fp8"), "--op combine: takes no --row-format: combined rows are bf16; it takes --"),
    (("dispatch", "--dispatcher", "deepep"), "--op dispatch: --tokens is missing; it needs --dispatcher, --tokens, --hidden, "
                                             "--k, --experts, --gpus"),
])
def test_options_are_named_as_they_are_typed(words, said):
    expect_error(moesim("predict", "--op", *words), 2, f"moesim: error: {said}")


def test_columns_of_a_file_are_named_as_they_stand_there(tmp_path):
    (tmp_path / "q.csv").write_text("op,m,n\ngemm,8,8\n")
    expect_error(moesim("predict", "--in", tmp_path / "q.csv"), 2, "line 2, column k: gemm needs a value here")
