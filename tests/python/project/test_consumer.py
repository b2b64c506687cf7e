"""moesim in the hands of others: installed and moved, by find_package and by add_subdirectory."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from command_line import BINARY, as_json, needs_binary, succeed

pytestmark = needs_binary
ROOT = Path(__file__).resolve().parents[3]
CONSUMER = ROOT / "tests" / "consumer"
BUILD = Path(BINARY).resolve().parents[1]
# As the comment of tests/consumer/simulate.cpp says.
SCENARIO = re.search(r"moesim simulate (.*)", (CONSUMER / "simulate.cpp").read_text())[1].split()


def call(*words, **environment):
    """The output of a program that must succeed, without the documents of this checkout."""
    kept = {name: value for name, value in os.environ.items() if name != "MOESIM_PROFILES"}
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                            timeout=600, env={**kept, **environment}, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def cached(name):
    """A setting of the build under test, for builds beside it that are to be like it."""
    found = re.search(rf"^{name}:\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.MULTILINE)
    return found[1] if found else ""


def configure(folder, *settings):
    # The flags of the build type too: others, and a compiler cache knows no source.
    build_type = cached("CMAKE_BUILD_TYPE")
    alike = [f"-D{name}={cached(name)}"
             for name in ("CMAKE_BUILD_TYPE", "CMAKE_CXX_COMPILER", "CMAKE_CXX_FLAGS",
                          f"CMAKE_CXX_FLAGS_{build_type.upper()}", "CMAKE_CXX_COMPILER_LAUNCHER",
                          "MOESIM_WERROR")]
    return call("cmake", "-S", CONSUMER, "-B", folder, "-G", "Ninja", "--no-warn-unused-cli", *alike,
                *settings)


@pytest.fixture(name="prefix", scope="module")
def installed(tmp_path_factory):
    if not (BUILD / "cmake_install.cmake").is_file():
        pytest.skip(f"{BUILD} is no build folder of CMake")
    folder = tmp_path_factory.mktemp("installed")
    call("cmake", "--install", BUILD, "--prefix", folder / "first", "--strip")
    # What is installed may be moved.
    (folder / "first").rename(folder / "second")
    return folder / "second"


def test_installed_command_finds_what_lies_beside_it(prefix, tmp_path):
    program = prefix / "bin" / "moesim"
    documents = prefix / "share" / "moesim"
    # A profile, a model, a cluster and a trace that this checkout does not have.
    for kind, name in (("hardware", "a100-sxm-80gb"), ("models", "llama2-7b-moe8"),
                       ("clusters", "dgx-a100")):
        shutil.copy(documents / "profiles" / kind / f"{name}.json",
                    documents / "profiles" / kind / f"{name}-copy.json")
    shutil.copytree(documents / "traces" / "tiny-moe-top2", documents / "traces" / "a-copy")
    out = tmp_path / "sweep.csv"
    call(program, "sweep", "--profile", "a100-sxm-80gb-copy", "--model", "llama2-7b-moe8-copy",
         "--cluster", "dgx-a100-copy", "--gpus", "8", "--replicas", "1", "--mode", "prefill",
         "--router", "top1,top2", "--out", out)
    call(program, "plot", out, "--out", tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
    call(program, "route", "--router", "top2", "--routing", "trace-repeat:a-copy", "--replicas", "1")


def test_copied_command_falls_back_to_its_sources(prefix, tmp_path):
    lone = tmp_path / "lone" / "moesim"
    lone.parent.mkdir()
    shutil.copy(prefix / "bin" / "moesim", lone)
    call(lone, "simulate", "--gpus", "8", "--replicas", "1", "--mode", "prefill")


@pytest.fixture(name="consumer", scope="module")
def built_on_the_package(prefix, tmp_path_factory):
    """Programs of another project that links the installed library, by name: their output for words."""
    folder = tmp_path_factory.mktemp("consumer")
    configure(folder, f"-DCMAKE_PREFIX_PATH={prefix}")
    call("cmake", "--build", folder)
    profiles = prefix / "share" / "moesim" / "profiles"
    return lambda name, *words: call(folder / name, *words, MOESIM_PROFILES=str(profiles))


def test_find_package(consumer):
    assert float(re.match(r"step ([0-9.]+) ms", consumer("simulate"))[1]) == pytest.approx(
        as_json("simulate", *SCENARIO)["step_ms"], abs=1e-6)


STEP = {"model": "qwen3-30b-a3b", "gpus": 16, "sequence-length": 2048, "global-batch": 64}


@pytest.fixture(name="own_software", scope="module")
def document_of_calibrate(tmp_path_factory):
    """Software that takes half again as long as predicted, with a slower host."""
    folder = tmp_path_factory.mktemp("own")
    rows = ["pipeline_parallel,global_batch,measured_ms"]
    for stages, batch in ((1, 64), (2, 64), (1, 128)):
        step = as_json("train", *flags(STEP | {"global-batch": batch, "pipeline-parallel": stages, "launch-us": 25}))
        rows.append(f"{stages},{batch},{1.5 * step['step_ms']}")
    (folder / "steps.csv").write_text("\n".join(rows) + "\n")
    common = {name: value for name, value in STEP.items() if name != "global-batch"}
    succeed("calibrate", folder / "steps.csv", *flags(common), "--out", folder / "mine.json")
    return folder / "mine.json"


def flags(options):
    return [word for name, value in options.items() for word in (f"--{name}", value)]


@pytest.mark.parametrize("more", [
    {}, {"software": "megatron-bridge"}, {"cluster": "hgx-h200"}, {"router": "topk", "capacity-factor": 1},
    {"software": "OWN"}, {"profile": "OWN"}], ids=lambda more: "-".join(more) or "plain")
def test_a_library_user_gets_the_step_and_the_band_of_train(consumer, own_software, more):
    options = STEP | {name: own_software if value == "OWN" else value for name, value in more.items()}
    answer = consumer("train", *(word for pair in options.items() for word in pair))
    step, level, low, high, p05, p95 = map(
        float, re.match(r"step (\S+) ms\nband (\S+): (\S+) to (\S+) ms\np05 to p95: (\S+) to (\S+) ms", answer).groups())
    row = as_json("train", *flags(options))
    assert level == row["band_level"]
    assert [step, low, high] == pytest.approx([row["step_ms"], row["step_ms_low"], row["step_ms_high"]], rel=1e-8)
    # The widest level that published steps allow is 90 or 80 %.
    assert (p05, p95) == (low, high) if level == 0.9 else p05 < low < step < high < p95


def test_the_library_alone_is_found(tmp_path):
    call("cmake", "--install", BUILD, "--prefix", tmp_path / "prefix", "--component", "library")
    assert not (tmp_path / "prefix" / "bin").exists()
    configure(tmp_path / "build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}")


@pytest.fixture(name="beside")
def folder_beside_the_build():
    """As deep as the build under test: a compiler cache then knows its sources the next time."""
    with tempfile.TemporaryDirectory(prefix="consumer-", dir=BUILD.parent) as folder:
        yield Path(folder)


@pytest.mark.slow
def test_add_subdirectory(beside):
    configure(beside, f"-DMOESIM_SOURCE={ROOT}")
    targets = call("ninja", "-C", beside, "-t", "targets", "all")
    # The library alone: no command, kernels or tests.
    assert "libmoesim_report.a" in targets
    assert "libmoesim_measure.a" not in targets and "catch_main" not in targets
    # It is linked in test_find_package: here that would compile the library anew, for minutes. What
    # would be linked is planned, and one room and the consumer are compiled.
    link = call("ninja", "-C", beside, "-t", "commands", "simulate").splitlines()[-1]
    assert "-o simulate" in link and "libmoesim_report.a" in link
    call("cmake", "--build", beside, "--target", "moesim_base", "CMakeFiles/simulate.dir/simulate.cpp.o")


def test_completion_and_the_manual_page_are_installed(prefix):
    share = prefix / "share"
    assert "complete -o filenames -F _moesim moesim" in (share / "bash-completion/completions/moesim").read_text()
    assert (share / "zsh/vendor-completions/_moesim").read_text().startswith("#compdef moesim")
    assert "complete -c moesim" in (share / "fish/vendor_completions.d/moesim.fish").read_text()
    assert ".TH MOESIM 1" in (share / "man/man1/moesim.1").read_text()


def test_a_debian_package_has_the_command_and_its_documents(tmp_path):
    if not all(map(shutil.which, ("cpack", "dpkg-deb", "dpkg-shlibdeps"))):
        pytest.skip("cpack, dpkg-deb or dpkg-shlibdeps is missing (cmake, dpkg-dev)")
    call("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", tmp_path, "-G", "DEB")
    package, = tmp_path.glob("moesim_*.deb")
    fields = call("dpkg-deb", "--field", package)
    assert "\nDepends: " in fields and "libc6" in fields and "libcuda" not in fields and "nccl" not in fields
    call("dpkg-deb", "--extract", package, tmp_path / "root")
    program = tmp_path / "root/usr/bin/moesim"
    assert re.search(r"^step +[0-9.]+ ms", call(program, "simulate", "--gpus", 8, "--replicas", 1), re.MULTILINE)
    assert (tmp_path / "root/usr/share/man/man1/moesim.1").is_file()
