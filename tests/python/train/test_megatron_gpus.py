"""--megatron FILE: the number of GPUs, which srun, torchrun, mpirun or a line of Slurm says."""

import json

import pytest
from command_line import as_json, expect_error, moesim, needs_binary
from megatron_files import SCRIPT, write

pytestmark = needs_binary


def launched(tmp_path, command):
    """A script of which the last line of `command` begins the one that trains."""
    model = SCRIPT.split("MODEL_ARGS=(")[1].split(")")[0]
    *first, last = command.split("\n")
    return write(tmp_path, "\n".join([*first, f"ARGS=({model})", f"{last} pretrain_gpt.py ${{ARGS[@]}} --bf16\n"]))


@pytest.mark.parametrize("first, nodes", [
    ("#SBATCH --nodes=8\n", "$SLURM_NNODES"),
    ("#SBATCH -N 8\n", "${SLURM_JOB_NUM_NODES}"),
    ("#SBATCH -N8 --gres=gpu:8\nNNODES=${SLURM_NNODES:-1}\n", "$NNODES"),
    ("#SBATCH --nodes 8\nNNODES=$(scontrol show hostnames | wc -l)\n", "$NNODES"),
])
def test_the_nodes_are_those_of_slurm(tmp_path, first, nodes):
    script = SCRIPT.replace("#SBATCH --job-name=qwen\n", first).replace("NNODES=${NNODES:-8}      # nodes\n", "") \
                   .replace("--nnodes $NNODES", f"--nnodes {nodes}").replace("GBS=$((NNODES * GPUS_PER_NODE * 4))", "GBS=256")
    assert as_json("train", "--megatron", write(tmp_path, script)) == as_json("train", "--megatron", write(tmp_path, SCRIPT))


@pytest.mark.parametrize("command, gpus", [
    ("#SBATCH -N 16\n#SBATCH --gres=gpu:h100:8 --ntasks-per-node=1\nsrun", 128),
    ("#SBATCH --nodes=4 --ntasks-per-node=8 --gpus-per-node=8\nsrun --ntasks-per-node=8", 32),
    ("srun -N 2 -n 16", 16),
    ("#!/bin/bash\n\n# nodes\n#SBATCH -N 4 --gpus-per-node=8\nmodule load x\n#SBATCH -N 16\nsrun", 32),
    ("#SBATCH -n 24\nsrun", 24),
    ("#SBATCH -N 8\n#SBATCH -G 64\nsrun", 64),
    ("#SBATCH --gpus=h100:64\nsrun", 64),
    ("#SBATCH --nodes=8 --ntasks-per-node=1 --gpus-per-task=8\nsrun", 64),
    ("#SBATCH --ntasks=16 --gpus-per-task=1\nsrun", 16),
    ("#SBATCH --nodes 8 --gres=gpu:a100:8,nvme:1\nsrun", 64),
    ("#SBATCH --nodes 8 --gres=nvme:1,gpu:8\nsrun", 64),
    ("#SBATCH --nodes 8-8 --gres=gpu\nsrun", 8),
    ("#SBATCH --nodes 8 --gres=gpu:a100:8,nvme:1 --ntasks-per-node=1\nsrun torchrun --nproc-per-node $SLURM_GPUS_ON_NODE", 64),
    ("#SBATCH --nodes 8 --gpus-per-node=8 --ntasks-per-node=1\nsrun torchrun --nproc-per-node gpu --nnodes 8", 64),
    ("mpirun -np 64 -npernode 8", 64),
    ("mpiexec -n 64", 64),
    ("/usr/bin/mpirun -np 64", 64),
    ("env A=1 /opt/slurm/bin/srun -N 8 --ntasks-per-node=8", 64),
    ("timeout 60 mpirun -np 64", 64),
    ("torchrun --nproc_per_node 8 --nnodes 8:8", 64),
    ("torchrun --nproc_per_node 8 --nnodes=8:8", 64),
    ("accelerate launch --num_processes 64 --num_machines 8", 64),
])
def test_slurm_alone_says_how_many_gpus(tmp_path, command, gpus):
    result = moesim("layout", "--megatron", launched(tmp_path, command + " python"), "--format", "json")
    assert "how many GPUs" not in result.stderr
    first = json.loads(result.stdout)
    assert first["gpus"] == gpus
    assert first["global_batch"] == gpus  # Megatron-LM's default: a micro-batch of each pipeline


def test_deepspeed_starts_gpus_on_each_node(tmp_path):
    assert as_json("layout", "--megatron", launched(tmp_path, "deepspeed --num_nodes 4 --num_gpus 8"))["gpus"] == 32


@pytest.mark.parametrize("command", [
    "python", "bash -c 'python' python", "srun python", "#SBATCH --nodes=8 --ntasks-per-node=1\nsrun python",
    "#SBATCH -N 8 -n 8\nsrun python", "python -n 4 -N 2 -G 8", "docker run --gpus all python",
])
def test_the_default_number_of_gpus_is_said(tmp_path, command):
    script = launched(tmp_path, command)
    result = moesim("layout", "--megatron", script, "--format", "json")
    assert json.loads(result.stdout)["gpus"] == 32
    assert "it does not say how many GPUs there are: --gpus 32, the default" in result.stderr
    assert "how many GPUs" not in moesim("layout", "--megatron", script, "--gpus", 8).stderr


@pytest.mark.parametrize("command, why", [
    ("#SBATCH --nodes=8 --ntasks-per-node=1\nsrun torchrun --nproc_per_node=$GPUS_PER_NODE", "'$GPUS_PER_NODE': the script does not set it"),
    ("torchrun --nproc_per_node gpu --nnodes 4", "'gpu': the file does not say how many GPUs a node has"),
])
def test_an_unknown_number_of_gpus_on_a_node_is_refused(tmp_path, command, why):
    script = launched(tmp_path, command)
    expect_error(moesim("layout", "--megatron", script), 2, "--nproc-per-node", why)
    assert as_json("layout", "--megatron", script, "--gpus", 16)["gpus"] == 16


@pytest.mark.parametrize("command, why", [
    ("torchrun --nproc_per_node 8 --nnodes 2:16", "--nnodes: '2:16' may be 2 nodes or 16: put their number there, or give --gpus"),
    ("#SBATCH --nodes=2-16 --gpus-per-node=8\nsrun", "--nodes: '2-16' may be 2 nodes or 16"),
    ("torchrun --nproc_per_node 8 --nnodes 16:x", "'16:x' is not a whole number"),
])
def test_a_number_of_nodes_that_may_be_several_is_refused(tmp_path, command, why):
    script = launched(tmp_path, command)
    expect_error(moesim("layout", "--megatron", script), 2, why)
    assert as_json("layout", "--megatron", script, "--gpus", 16)["gpus"] == 16
