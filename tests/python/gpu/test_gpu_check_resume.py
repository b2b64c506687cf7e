"""tools/gpu-check --resume, and how it divides the time: what is gone on with, what is kept."""

import shutil
import tarfile

import pytest
from gpu_check import states, SYNTHETIC

# Each writes something to --out, and ends as out of time.
LATE_PROFILE = f"""[ "$1" = profile ] || exit 0
while [ $# -gt 1 ]; do [ "$1" = --out ] && echo '{SYNTHETIC}' >"$2"; shift; done; exit 124"""


def writes(machine, program, file, text, code):
    """`program` writes a file of `text` into the folder --out, and ends with `code`."""
    machine.program(program, f"""while [ $# -gt 1 ]; do
  [ "$1" = --out ] && printf '%s\\n' '{text}' >"$2/{file}"
  shift
done
exit {code}""")


def rows(count, late=0):
    return count * '{"time_us": 1, "stages": []}' + late * '{"trouble": "the time limit of 9 s was over"}'


def kernels(machine, text, code):
    writes(machine, "bench_gpu_kernels", "gpu_kernels.json", text, code)


def layers(machine, text, code):
    writes(machine, "bench_layer_gpu", "measured-layer.json", text, code)


def program_names(lines):
    return [line.split()[0] for line in lines if line.strip()]


@pytest.fixture
def plain(machine):
    """Without a PyTorch."""
    machine.program("python3", "exit 1")
    return machine


def test_what_ran_out_of_time_is_run_again(plain):
    plain.program("moesim", LATE_PROFILE)
    layers(plain, rows(2), 124)
    kernels(plain, rows(2), 124)
    words = ("--parts", "profile,layer,benchmarks", "--seconds", "60")
    assert plain(*words, python="python3").returncode == 124
    assert states(plain.folder) == dict.fromkeys(["profile", "layer", "benchmarks"], "partial")
    before = len(plain.lines())
    plain.program("moesim", "exit 0")
    layers(plain, rows(4), 0)
    kernels(plain, rows(4), 0)
    result = plain(*words, "--resume", python="python3")
    assert result.returncode == 0, result.stderr
    assert set(states(plain.folder).values()) == {"passed"}
    again = plain.lines()[before:]
    assert {"moesim", "bench_layer_gpu", "bench_gpu_kernels"} <= {*program_names(again)}
    assert all("--resume" in line for line in again if line.startswith("moesim profile"))


def test_whole_results_below_a_bar_are_not_measured_again(plain):
    layers(plain, rows(4), 5)
    kernels(plain, rows(4), 5)
    words = ("--parts", "layer,benchmarks")
    assert plain(*words, python="python3").returncode == 5
    assert states(plain.folder) == {"layer": "unmet", "benchmarks": "unmet"}
    before = len(plain.lines())
    layers(plain, rows(1), 0)
    kernels(plain, rows(1), 0)
    result = plain(*words, "--resume", python="python3")
    assert result.returncode == 5 and result.stderr.count("before") == 2
    assert [line for line in plain.lines()[before:] if line.startswith("bench")] == []
    for name in ("gpu_kernels.json", "measured-layer.json"):
        assert (plain.folder / name).read_text().strip() == rows(4)


def test_results_below_a_bar_that_lack_rows_are_measured_again_and_the_longer_ones_kept(plain):
    layers(plain, rows(4, late=1), 5)
    kernels(plain, rows(4, late=1), 5)
    words = ("--parts", "layer,benchmarks")
    assert plain(*words, python="python3").returncode == 124
    assert states(plain.folder) == {"layer": "partial", "benchmarks": "partial"}
    layers(plain, rows(3, late=2), 124)
    kernels(plain, rows(3, late=2), 5)
    assert plain(*words, "--resume", python="python3").returncode == 124
    for name in ("gpu_kernels.json", "measured-layer.json"):
        assert (plain.folder / name).read_text().strip() == rows(4, late=1)
        assert not (plain.folder / f"{name}.before").exists()
    layers(plain, rows(5), 5)
    kernels(plain, rows(5), 5)
    assert plain(*words, "--resume", python="python3").returncode == 5
    for name in ("gpu_kernels.json", "measured-layer.json"):
        assert (plain.folder / name).read_text().strip() == rows(5)


def test_results_set_aside_by_a_call_that_was_killed_are_found(plain):
    kernels(plain, rows(3, late=1), 124)
    assert plain("--parts", "benchmarks", python="python3").returncode == 124
    (plain.folder / "gpu_kernels.json").rename(plain.folder / "gpu_kernels.json.before")
    kernels(plain, rows(2), 124)
    assert plain("--parts", "benchmarks", "--resume", python="python3").returncode == 124
    assert (plain.folder / "gpu_kernels.json").read_text().strip() == rows(3, late=1)
    # Without --resume those of earlier calls are not this one's.
    plain.program("bench_gpu_kernels", "exit 1")
    assert plain("--parts", "benchmarks", python="python3").returncode == 1
    assert not (plain.folder / "gpu_kernels.json").exists()


def test_exchanges_of_ranks_are_not_lost_to_fewer(machine):
    def ranks(count, code):
        machine.program("moesim", f"""while [ $# -gt 1 ]; do
  [ "$1" = --out ] && printf '"synthetic": true\\n{count * '"op" '}' >"$2"
  shift
done
exit {code}""")
        return machine("--parts", "ranks", *(["--resume"] if code == 124 and count == 1 else []))
    assert ranks(2, 124).returncode == 124
    assert ranks(1, 124).returncode == 124
    assert (machine.folder / "ranks.json").read_text().count('"op"') == 2


def test_the_sanitizer_goes_on_with_the_tools_that_are_left(machine):
    machine.program("compute-sanitizer", 'case $2 in racecheck) exit 124 ;; esac')
    assert machine("--parts", "sanitizer").returncode == 124
    machine.program("compute-sanitizer", "exit 0")
    before = len(machine.lines())
    assert machine("--parts", "sanitizer", "--resume").returncode == 0
    assert [line.split()[2] for line in machine.lines()[before:]] == ["racecheck", "synccheck", "initcheck"]
    log = (machine.folder / "sanitizer.log").read_text()
    assert "no time to end racecheck" in log and "memcheck passed before" in log


def test_a_step_is_predicted_again_where_the_profile_went_on(machine):
    machine.program("moesim", LATE_PROFILE)
    machine("--parts", "profile,simulate", "--seconds", "60")
    assert states(machine.folder) == {"profile": "partial", "simulate": "passed"}
    before = len(machine.lines())
    machine("--parts", "profile,simulate", "--seconds", "60", "--resume")
    assert machine.lines()[-1].startswith("moesim simulate") and len(machine.lines()) > before + 1


@pytest.mark.parametrize("missing, code", [('"the time limit of 9 s was over"', 124), ('"Absent"', 0)])
def test_peers_that_had_no_time_are_gone_on_with(machine, missing, code):
    kernels(machine, rows(4), 0)
    machine.program("python3", f"""[ "$1" = -c ] && exit 0
while [ $# -gt 1 ]; do [ "$1" = --out ] && echo '{missing}' >"$2"; shift; done""")
    words = ("--parts", "benchmarks")
    assert machine(*words, python="python3").returncode == code
    before = len(machine.lines())
    machine(*words, "--resume", python="python3")
    calls = [line for line in machine.lines()[before:] if "gpu_peers.py" in line]
    assert len(calls) == (1 if code else 0)
    assert all(line.endswith(" --resume") for line in calls)


def test_what_no_profile_has_yet_is_measured_first(machine):
    assert machine("--parts", "profile").returncode == 0
    first, rest = machine.lines()
    assert first.endswith("--suite sustained,overlap,attention-backward")
    assert "--suite" not in rest and rest.endswith("--resume")
    machine("--parts", "profile", "--first", "launch")
    assert machine.lines()[2].endswith("--suite launch")
    machine("--parts", "profile", "--first", "none")
    assert len(machine.lines()) == 5 and "--suite" not in machine.lines()[4]
    assert machine("--parts", "profile", "--first", "a b").returncode == 2


def test_wrong_results_of_the_first_suites_are_not_forgotten(machine):
    machine.program("moesim", 'case "$*" in *--suite*) exit 4 ;; esac')
    result = machine("--parts", "profile")
    assert result.returncode == 1 and "exit code 4" in result.stderr
    assert len(machine.lines()) == 2


def test_first_suites_that_break_twice_do_not_keep_the_others_from_being_measured(machine):
    machine.program("moesim", f"""case "$*" in *--suite*) exit 139 ;; esac
echo '{{}}' >{machine.folder}/node.json""")
    result = machine("--parts", "profile")
    assert result.returncode == 1 and "2 point(s) broke the run" in result.stderr
    assert ["--suite" in line for line in machine.lines()] == [True, True, False]


def granted(machine, *words):
    """What --list says that each part may take, in seconds."""
    return {line.split()[0]: int(line.split(" s ")[0].split()[-1])
            for line in machine("--list", *words).stdout.splitlines()}


def test_the_profile_and_the_peers_fit_into_a_call_of_ten_minutes(machine):
    most = granted(machine)
    # 191 s for the suites measured on an H200, and 11, 3 and 58 s for FP8 in `sustained`, for `overlap`
    # and for attention-backward, as `moesim profile --dry-run` says; no point begins in the last ten.
    assert most["profile"] - 10 >= 191 + 11 + 3 + 58
    # The others leave at least 100 s of these to those after them.
    assert sum(most.values()) <= 570


def test_calls_that_resume_each_other_fit_into_their_time_together(machine):
    machine("--parts", "facts")
    used = machine.folder / "seconds.used"
    assert int(used.read_text()) < 60
    used.write_text("590\n")
    # 900 s less 150 for the start of the machine and 590; a twentieth is kept back.
    assert 145 <= sum(granted(machine, "--resume").values()) <= 152
    assert 540 <= sum(granted(machine).values()) <= 570
    assert 540 <= sum(granted(machine, "--resume", "--total", "3600").values()) <= 570
    result = machine("--list", "--resume", "--total", "700")
    assert "earlier calls took 590 of --total 700 s; this one takes 60 s" in result.stderr
    machine("--parts", "facts", "--resume")
    assert 590 <= int(used.read_text()) < 650
    machine("--parts", "facts")
    assert int(used.read_text()) < 60


@pytest.mark.slow
def test_a_part_for_which_there_is_no_time_has_not_passed(machine):
    machine.program("test_gpu", "sleep 2")
    result = machine("--parts", "tests,facts", "--seconds", "6")
    assert states(machine.folder) == {"tests": "passed", "facts": "skipped"}
    assert result.returncode == 124


@pytest.mark.parametrize("said, count", [("GPU 0: NVIDIA H200\nGPU 1: NVIDIA H200", 2), ("no devices", 8)])
def test_gpus_are_counted_as_the_driver_does_where_it_can_be_asked(machine, said, count):
    machine.several(8)
    machine.program("nvidia-smi", f"printf '%s\\n' '{said}'")
    machine("--parts", "ranks")
    assert len([line for line in machine.lines() if "exchanges.json" in line]) == count


def test_an_archive_among_the_results_does_not_hold_itself(machine):
    archive = machine.folder / "all.tar.gz"
    assert machine("--parts", "facts,tests", "--archive", archive).returncode == 0
    with tarfile.open(archive) as whole:
        names = whole.getnames()
    assert "results/tests.log" in names and not any("all.tar" in name for name in names)


def test_an_archive_among_the_results_is_there_before_they_are_read(machine):
    # Else their folder may change as tar reads it, and tar fails: some 7 times of 100.
    archive = machine.folder / "all.tar.gz"
    real = shutil.which("tar")
    machine.program("tar", f"[ -e '{archive}.part' ] || exit 1\nexec {real} \"$@\"")
    assert machine("--parts", "facts", "--archive", archive).returncode == 0
    assert archive.stat().st_size > 0
