"""Where --out cannot be written, a command fails, and nothing is half-written."""

import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import BINARY, expect_error, moesim, needs_binary, SMALL

pytestmark = needs_binary
PROFILES = Path(__file__).resolve().parents[3] / "profiles"


@pytest.mark.parametrize("command", [
    ["simulate", *SMALL], ["sweep", *SMALL], ["route", *SMALL], ["doctor"],
    ["predict", "--op", "gemm", "--m", "64", "--n", "64", "--k", "64"]])
def test_unwritable_output(command, tmp_path):
    expect_error(moesim(*command, "--out", tmp_path / "no" / "x.csv"), 1, "x.csv", "cannot write")
    expect_error(moesim(*command, "--out", tmp_path), 1, str(tmp_path), "cannot write")
    assert not list(tmp_path.iterdir())


def test_unwritable_output_is_noticed_before_the_work(tmp_path):
    # Work of hours, refused at once.
    long_work = ["sweep", "--seed", "1:1000:1", "--replicas", "1000"]
    expect_error(moesim(*long_work, "--out", tmp_path / "no" / "x.csv", timeout=20), 1, "x.csv")
    expect_error(moesim("simulate", "--replicas", "100000", "--timeline", tmp_path / "no" / "t.json",
                        timeout=20), 1, "t.json")


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


@needs_full
@pytest.mark.parametrize("command", [["simulate", *SMALL], ["sweep", *SMALL], ["route", *SMALL],
                                     ["simulate", "--help"], ["--version"], ["doctor"]])
def test_full_disk(command):
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = moesim(*command, stdout=full)
    assert result.returncode == 1
    assert "No space left on device" in result.stderr
    if "--help" not in command and "--version" not in command:
        expect_error(moesim(*command, "--out", "/dev/full"), 1, "/dev/full", "No space left")


def test_a_failure_leaves_the_old_result_alone(tmp_path):
    out = tmp_path / "old.csv"
    out.write_text("precious\n")
    expect_error(moesim("simulate", "--router", "top9", "--out", out), 2)
    expect_error(moesim("sweep", "--capacity-factor", "1,-2", "--out", out), 2)
    assert out.read_text() == "precious\n"
    assert list(tmp_path.iterdir()) == [out]


def test_resume_without_a_place_to_resume_from(tmp_path):
    expect_error(moesim("sweep", *SMALL, "--resume"), 2, "--resume", "--out")
    out = tmp_path / "x.csv"
    (tmp_path / "x.csv.partial").write_text("moesim sweep journal 1 0123456789abcdef\n")
    expect_error(moesim("sweep", *SMALL, "--resume", "--out", out), 2, "other options")
    assert not out.exists()


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "link"])
def test_out_may_name_what_a_shell_redirects(tmp_path, name):
    """A link to an open file is no file: renaming over it would leave the redirected one empty."""
    (tmp_path / "link").symlink_to("/proc/self/fd/1")
    path = tmp_path / "rows.csv"
    path.write_text("before\n")
    command = f"{BINARY} predict --profile h100-sxm --op gemm --m 64 --n 64 --k 64 --format csv --out {name} >> rows.csv"
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    lines = path.read_text().splitlines()
    assert lines[0] == "before" and len(lines) == 3 and (tmp_path / "link").is_symlink()


def test_out_may_be_a_link_to_a_file(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "rows.csv").symlink_to("far/rows.csv")
    for _ in range(2):  # a link to nothing, and then to a file
        result = moesim("predict", "--profile", "h100-sxm", "--op", "gemm", "--m", 64, "--n", 64, "--k", 64,
                        "--out", "rows.csv", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert (tmp_path / "rows.csv").is_symlink()
        assert len((tmp_path / "far" / "rows.csv").read_text().splitlines()) == 2


@pytest.mark.parametrize(("option", "good", "bad", "said"), [
    ("--zero", "1", "7", "choose from 0, 1, 2, 3"), ("--precision", "bf16", "fp9", "choose from bf16, fp8-delayed"),
    ("--tensor-parallel", "2", "x", "is not a whole number"), ("--software", "aws", "nope", "with published steps"),
    ("--routing", "balanced", "gaussan:1", "is no source of scores"), ("--routing", "balanced", "trace:nope", "cannot read"),
    ("--capacity-factor", "1.25", "-1", "is negative"), ("--rank-capacity", "1.5", "0.5", "is no number from 1"),
    ("--trace-step", "1", "x", "is not a whole number"), ("--routing-draws", "per-layer", "nope", "choose from"),
    ("--pipeline-layout", "Et*32L", "Q", "not a symbol")])
def test_values_that_make_no_sense_are_noticed_before_the_first_row(option, good, bad, said, tmp_path):
    words = ("train", "--model", "mixtral-8x7b", "--profile", "h100-sxm", "--gpus", 16, "--out", tmp_path / "x.csv", "--jobs", 1)
    expect_error(moesim(*words, option, f"{good},{bad}"), 2, f"{option}", bad, said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [("sweep", "--tensor-parallel", 2), ("train",)])
@pytest.mark.parametrize(("option", "values"), [
    ("--profile", ("h100-sxm", "nope")), ("--cluster", ("hgx-h100", "nope")), ("--dispatcher", ("deepep", "./nope.json"))])
def test_unknown_names_are_noticed_before_the_first_row(command, option, values, tmp_path):
    words = (*command, "--model", "mixtral-8x7b", "--gpus", 16, "--out", tmp_path / "x.csv", "--jobs", 1)
    machine = () if option == "--profile" else ("--profile", "h100-sxm")
    expect_error(moesim(*words, *machine, option, ",".join(values)), 2, f"{option}: ", values[1])
    assert not list(tmp_path.iterdir())  # no finished rows for which the next command would be refused
    assert moesim(*words, *machine, option, values[0]).returncode == 0


LOGITS = ("--axes", "rank,token,expert", "--top-k", "1")


@pytest.mark.parametrize("command, replaced, said", [
    (["calibrate", "rows.csv", "--profile", "h100-sxm", "--out", "rows.csv"], "rows.csv", "what the command reads"),
    (["calibrate", "./rows.csv", "--profile", "h100-sxm", "--out", "link.csv"], "rows.csv", "what the command reads"),
    (["simulate", "--config", "own.yaml", "--out", "own.yaml"], "own.yaml", "what --config reads"),
    (["simulate", "--routing", "trace:trace", "--out", "trace/counts.npy"], "trace/counts.npy", "what --routing reads"),
    (["route", "--logits", "trace/logits.npy", "--out", "trace/logits.npy"], "trace/logits.npy", "what --logits reads"),
    (["route", "--fit-scores", "trace", "--out", "trace/trace.json"], "trace/trace.json", "what --fit-scores reads"),
    (["import", "trace/logits.npy", *LOGITS, "--out", "trace"], "trace/logits.npy", "what the command reads"),
    (["train", "--software", "own.json", "--out", "own.json"], "own.json", "what --software reads"),
])
def test_no_input_is_replaced(tmp_path, command, replaced, said):
    (tmp_path / "trace").mkdir()
    (tmp_path / "link.csv").symlink_to("rows.csv")
    for name in ("rows.csv", "own.yaml", "own.json", "trace/trace.json", "trace/logits.npy", "trace/counts.npy"):
        (tmp_path / name).write_text("measured\n")
    expect_error(moesim(*command, cwd=tmp_path), 2, f"--out {command[-1]}: would replace {said}: name another file")
    assert (tmp_path / replaced).read_text() == "measured\n"


def test_tables_and_documents_may_be_written_in_place(tmp_path):
    queries = tmp_path / "queries.csv"
    queries.write_text("op,m,n,k\ngemm,16,16,16\n")
    assert moesim("predict", "--in", queries, "--out", queries).returncode == 0
    assert queries.read_text().startswith("op,m,n,k,") and "\ngemm,16,16,16," in queries.read_text()
    # A number, a router or a title is no file, whatever lies in the folder.
    (tmp_path / "8").write_text("")
    assert moesim("simulate", *SMALL, "--out", "8", cwd=tmp_path).returncode == 0
    # A folder may have the name of a router.
    (tmp_path / "top2").mkdir()
    for _ in range(2):
        assert moesim("simulate", *SMALL, "--router", "top2", "--out", "top2/row.csv", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("command, other", [
    (["simulate", *SMALL, "--out", "one.json", "--timeline", "./one.json"], "out"),
    (["recommend", "--model", "qwen3-30b-a3b", "--gpus", "8", "--all", "rows.csv", "--out", "./rows.csv"], "all")])
def test_two_outputs_are_two_files(tmp_path, command, other):
    expect_error(moesim(*command, cwd=tmp_path), 2, f"--{other} writes the same file: name another")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [
    ["simulate", *SMALL], ["route", *SMALL], ["predict", "--op", "gemm", "--m", "16", "--n", "16", "--k", "16"],
    ["layout", "--gpus", "8"], ["recommend", "--model", "qwen3-30b-a3b", "--gpus", "8"]])
def test_rows_of_another_command_are_kept(tmp_path, command):
    rows = tmp_path / "rows.csv"
    rows.write_text("days,hours\n8,1\n16,2\n")
    result = moesim(*command, "--out", rows)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "rows.csv.old").read_text() == "days,hours\n8,1\n16,2\n"
    assert f"note: {rows} had a column 'days' that is not in this result: kept as {rows}.old" in result.stderr
    assert moesim(*command, "--out", rows).returncode == 0  # its own row is computed again
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_over_the_limit_of_the_shell_is_an_error(tmp_path):
    command = f"ulimit -f 8; exec {BINARY} simulate {' '.join(SMALL)} --timeline steps.json"
    result = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    expect_error(result, 1, "steps.json", "File too large")
    assert not list(tmp_path.iterdir())


def test_names_are_as_long_as_the_file_system_allows(tmp_path):
    name = "n" * 251 + ".csv"
    for _ in range(2):  # replaced the second time
        result = moesim("simulate", *SMALL, "--out", name, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]
    expect_error(moesim("simulate", *SMALL, "--out", "n" + name, cwd=tmp_path), 1, "File name too long")


def test_documents_of_a_file_of_options_are_not_replaced(tmp_path):
    shutil.copy(PROFILES / "hardware" / "h100-sxm.json", tmp_path / "mine.json")
    before = (tmp_path / "mine.json").read_bytes()
    (tmp_path / "own.yaml").write_text("profile: mine.json\n")
    result = moesim("simulate", *SMALL, "--config", "own.yaml", "--out", "mine.json", cwd=tmp_path)
    expect_error(result, 2, "--out mine.json: would replace what --profile reads")
    assert (tmp_path / "mine.json").read_bytes() == before


def test_one_copy_of_a_table_is_kept(tmp_path):
    rows = tmp_path / "rows.csv"
    for _ in range(3):
        rows.write_text("days,hours\n8,1\n16,2\n")
        assert moesim("layout", "--gpus", 8, "--out", rows).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv", "rows.csv.old"]
