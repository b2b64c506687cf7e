"""Short launch scripts for the tests of --megatron: what moesim reads in them and what bash runs."""

import os
import shutil
import subprocess

import pytest
from command_line import as_json, moesim
from megatron_files import write

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash to compare with is installed")

BASE = ("--num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 16 --seq-length 4096 "
        "--vocab-size 50304 --swiglu --disable-bias-linear --untie-embeddings-and-output-weights --num-experts 64 "
        "--moe-router-topk 8 --moe-ffn-hidden-size 1024 --moe-token-dispatcher-type alltoall --bf16 "
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --sequence-parallel "
        "--moe-grouped-gemm --moe-permute-fusion")
RUN = f"torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py {BASE} --global-batch-size 256"


def script_of(text):
    """A script of one that names its commands RUN and its arguments BASE."""
    return text.replace("RUN", RUN).replace("BASE", BASE) + "\n"


def layout(tmp_path, text, name="run.sh"):
    """What moesim layout reads in such a script."""
    read = as_json("layout", "--megatron", write(tmp_path, script_of(text), name))
    return {key: value for key, value in read.items() if key != "model"}


def notes(tmp_path, text):
    """The notes of moesim on such a script."""
    lines = moesim("layout", "--megatron", write(tmp_path, script_of(text))).stderr.splitlines()
    return [line.split("run.sh: ", 1)[1] for line in lines if line.startswith("note: ")]


def bash(tmp_path, text):
    """What bash prints as it runs such a script, and the arguments of each torchrun that it starts."""
    stub = write(tmp_path, "#!/bin/bash\nprintf '%s\\0' \"$@\" >> \"$ARGUMENTS\"\nprintf '\\n\\0' >> \"$ARGUMENTS\"\n",
                 "bin/torchrun")
    stub.chmod(0o755)
    arguments = write(tmp_path, "", "arguments")
    environment = {"PATH": f"{stub.parent}:{os.environ['PATH']}", "ARGUMENTS": str(arguments)}
    printed = subprocess.run(["bash", str(write(tmp_path, script_of(text), "script.sh"))], env=environment, cwd=tmp_path,
                             check=False, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout
    runs = arguments.read_text(encoding="utf-8").split("\n\0")
    return printed, [run.split("\0")[:-1] for run in runs if run]
