"""The two commands and what they are made of: help, options, packages, sums of results."""

import csv
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import measured_points  # noqa: E402
import summarise  # noqa: E402
import sweep_table  # noqa: E402


MOST_LINES = 500  # of a file of code, as CONTRIBUTING.md says


def run(*arguments, **environment):
    return subprocess.run(
        arguments, capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


@pytest.mark.parametrize("tool", ["test", "quickstart", "lint"])
def test_help_is_on_stdout_and_names_its_options(tool, tmp_path):
    answer = subprocess.run(
        [ROOT / "tools" / tool, "--help"], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert answer.returncode == 0
    assert "usage: tools/" + tool in answer.stdout
    assert "--jobs N" in answer.stdout
    assert answer.stderr == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments, reason", [
    (["test", "--times"], "--times"), (["test", "--times", "x"], "--times"),
    (["test", "--only"], "--only"), (["lint", "--results"], "--results")])
def test_an_option_without_its_value_is_a_usage_error(arguments, reason):
    answer = run(ROOT / "tools" / arguments[0], *arguments[1:])
    assert (answer.returncode, answer.stdout) == (2, "")
    assert reason in answer.stderr


@pytest.mark.parametrize("tool", ["test", "quickstart", "lint"])
@pytest.mark.parametrize(
    "arguments, reason",
    [(["--nonsense"], "--nonsense"), (["--jobs", "0"], "--jobs"), (["--jobs", "-1"], "--jobs"),
     (["--jobs"], "--jobs"), (["--jobs", "many"], "'many'")],
)
def test_a_wrong_option_is_a_usage_error(tool, arguments, reason):
    answer = run(ROOT / "tools" / tool, *arguments)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert reason in answer.stderr


@pytest.fixture
def machine(tmp_path):
    """Runs a line of shell with tools/common.sh on a machine made of stubs: nothing installed."""
    stubs = tmp_path / "bin"
    stubs.mkdir()
    log = tmp_path / "log"

    def stub(name, body):
        path = stubs / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def shell(line):
        script = f"set -euo pipefail\ntop={ROOT}\n. {ROOT}/tools/common.sh\n{line}"
        return run("bash", "-c", script, PATH=f"{stubs}:{os.environ['PATH']}", LOG=str(log))

    stub("dpkg-query", "grep -qsx \"$3\" $LOG.installed && echo 'install ok installed'")
    stub("apt-get", 'echo "apt-get $*" >> $LOG')
    stub("id", "echo 0")
    shell.stub, shell.log = stub, log
    return shell


def test_missing_packages_are_installed_by_root(machine):
    answer = machine("ensure_packages alpha beta")
    assert answer.returncode == 0
    assert machine.log.read_text() == "apt-get install -y --no-install-recommends alpha beta\n"


def test_only_what_is_missing_is_installed(machine):
    Path(f"{machine.log}.installed").write_text("alpha\n")
    assert machine("ensure_packages alpha beta").returncode == 0
    assert machine.log.read_text().endswith(" beta\n")
    assert "alpha" not in machine.log.read_text()


def test_nothing_is_done_when_all_is_there(machine):
    Path(f"{machine.log}.installed").write_text("alpha\nbeta\n")
    answer = machine("ensure_packages alpha beta")
    assert answer.returncode == 0
    assert not machine.log.exists()


def test_package_lists_are_updated_when_the_first_try_fails(machine):
    machine.stub("apt-get", 'echo "$1" >> $LOG\n[ "$1" = update ] || grep -q update $LOG')
    assert machine("ensure_packages alpha").returncode == 0
    assert machine.log.read_text().split() == ["install", "update", "install"]


def test_a_failing_apt_is_an_error_with_its_words(machine):
    machine.stub("apt-get", "echo no network >&2; exit 100")
    answer = machine("ensure_packages alpha")
    assert answer.returncode == 1
    assert "no network" in answer.stderr


def test_without_permission_the_command_is_listed(machine):
    machine.stub("id", "echo 1000")
    machine.stub("sudo", "exit 1")
    answer = machine("ensure_packages alpha beta")
    assert answer.returncode == 1
    assert "sudo apt-get install --no-install-recommends alpha beta" in answer.stderr
    assert not machine.log.exists()


def test_sudo_without_a_password_is_used(machine):
    machine.stub("id", "echo 1000")
    machine.stub("sudo", '[ "$1" = -n ] && shift\nexec "$@"')
    assert machine("ensure_packages alpha").returncode == 0
    assert "alpha" in machine.log.read_text()


def test_an_optional_package_that_is_not_to_be_had_is_only_reported(machine):
    machine.stub("apt-get", "exit 100")
    answer = machine("offer_packages alpha")
    assert answer.returncode == 0
    assert "alpha cannot be installed here" in answer.stderr


def results(path, *cases):
    path.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    return path


PASSED = '<testcase name="a" classname="a" status="run"/>'
FAILED = '<testcase name="b" classname="b" status="fail"><failure message=""/></testcase>'
CTEST_SKIP = (
    '<testcase name="c" classname="c" status="notrun"><skipped message="REGEX"/>'
    "<system-out>x.cpp:9: warning:\n  SKIPPED: no device\n</system-out></testcase>"
)
PYTEST_SKIP = '<testcase name="d" classname="t"><skipped message="no data">x</skipped></testcase>'


def test_results_are_summed_over_runs(tmp_path, capsys):
    one = results(tmp_path / "1.xml", PASSED, CTEST_SKIP)
    two = results(tmp_path / "2.xml", PASSED, PASSED, PYTEST_SKIP)
    assert summarise.main([f"ctest={one}", f"pytest={two}"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "skipped: c: no device", "skipped: t: d: no data", "3 passed, 0 failed, 2 skipped",
    ]


def test_a_failure_is_named_and_sets_the_exit_code(tmp_path, capsys):
    assert summarise.main([f"ctest={results(tmp_path / '1.xml', PASSED, FAILED)}"]) == 1
    assert capsys.readouterr().out.splitlines() == ["failed: b", "1 passed, 1 failed, 0 skipped"]


def test_a_run_without_results_is_a_failure(tmp_path, capsys):
    broken = tmp_path / "broken.xml"
    broken.write_text("<testsuites>")
    empty = results(tmp_path / "empty.xml")
    arguments = [f"ctest={tmp_path}/absent.xml", f"pytest={broken}", f"more={empty}"]
    assert summarise.main(arguments) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 3 failed, 0 skipped"


def test_the_longest_tests_are_listed_with_their_labels(tmp_path, capsys):
    short = '<testcase name="e" classname="e" status="run" time="0.5"/>'
    labelled = ('<testcase name="f" classname="f" status="run" time="7.25"><properties>'
                '<property name="cmake_labels" value="unit-slow"/></properties></testcase>')
    marked = ('<testcase name="g" classname="t" time="2"><properties>'
              '<property name="marks" value="golden"/></properties></testcase>')
    path = results(tmp_path / "1.xml", short, labelled, marked)
    assert summarise.main(["--times", "2", f"ctest={path}"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "    7.25 s  f [unit-slow]", "    2.00 s  t: g [golden]", "    9.75 s  all 3 tests",
        "3 passed, 0 failed, 0 skipped",
    ]


def test_measured_slow_tests_are_listed_by_name(tmp_path, capsys):
    fast = '<testcase name="e" classname="e" status="run" time="0.25"/>'
    slow = '<testcase name="room: f, g" classname="room: f, g" status="run" time="0.35"/>'
    python = '<testcase name="test_h[1]" classname="tests.python.test_x" time="2"/>'
    path = results(tmp_path / "1.xml", fast, python, slow)
    assert summarise.main(["--slow-list", str(tmp_path / "slow.txt"), f"ctest={path}"]) == 0
    assert [line for line in (tmp_path / "slow.txt").read_text().splitlines() if line[0] != "#"] == [
        "room: f, g", "tests.python.test_x: test_h[1]"]
    assert capsys.readouterr().out.splitlines() == ["3 passed, 0 failed, 0 skipped"]


def test_the_list_of_slow_tests_names_tests_that_there_are():
    """Left over names do no harm, but they hide that the list was not written anew."""
    listed = [line for line in (ROOT / "tests" / "slow.txt").read_text().splitlines() if line[0] != "#"]
    python = [line.removeprefix("tests.python.").split(": ", 1) for line in listed
              if line.startswith("tests.python.")]
    assert len(python) > 50 and len(listed) - len(python) > 20
    for module, name in python:
        source = (ROOT / "tests" / "python" / Path(*module.split(".")).with_suffix(".py")).read_text()
        assert f"def {name.split('[')[0]}(" in source, f"{module}: {name}: tools/test --slow-list"


def test_the_list_of_slow_tests_needs_a_whole_run():
    result = run(str(ROOT / "tools" / "test"), "--slow-list", "--quick")
    assert result.returncode == 2 and "needs a whole run" in result.stderr


@pytest.fixture
def checkout(tmp_path):
    """Runs tools/lint in a repository of its own, with stand-ins for clang-format and clang-tidy
    that dislike files with the word "bad" and list what they were given."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    top = tmp_path / "project"
    (top / "tools").mkdir(parents=True)
    for name in ("lint", "common.sh"):
        shutil.copy(ROOT / "tools" / name, top / "tools" / name)
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for name in ("clang-format", "clang-tidy"):
        path = stubs / f"{name}-14"
        path.write_text(
            '#!/bin/bash\n'
            f'[ "$1" != --version ] || {{ echo "{name} version ${{VERSION:-14}}.0.6"; exit 0; }}\n'
            'bad=0\n'
            'for word in "$@"; do\n'
            f'  if [ -f "$word" ]; then echo "{name} $word" >>$LOG; ! grep -q bad "$word" || bad=1; fi\n'
            'done\n'
            'exit $bad\n')
        path.chmod(0o755)
        shutil.copy(path, stubs / name)

    def git(*words):
        subprocess.run(["git", "-C", top, "-c", "user.name=t", "-c", "user.email=t@example.org",
                        *words], check=True, capture_output=True, timeout=60)

    def write(name, text):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
        git("add", name)

    def lint(*words, **environment):
        log = tmp_path / "log"
        log.write_text("")
        answer = run(top / "tools" / "lint", *words, PATH=f"{stubs}:{os.environ['PATH']}",
                     LOG=str(log), **environment)
        return answer, sorted(log.read_text().splitlines())

    git("init", "-q", "-b", "main")
    write("sim/base/old.cpp", "bad from the start")
    git("commit", "-q", "-m", "first")
    for index in range(10):
        write("sim/base/new.cpp", f"version {index}")
        git("commit", "-q", "-m", f"number {index}")
    database = top / "build" / "test" / "compile_commands.json"
    database.parent.mkdir(parents=True)
    database.write_text("".join(f'"file": "{top}/sim/base/{name}.cpp"\n' for name in
                                ("old", "new", "user")))
    lint.write, lint.git, lint.top = write, git, top
    return lint


def test_lint_checks_everything_or_what_changed(checkout):
    answer, given = checkout()
    assert answer.returncode == 1
    assert given == ["clang-format sim/base/new.cpp", "clang-format sim/base/old.cpp",
                     "clang-tidy sim/base/new.cpp", "clang-tidy sim/base/old.cpp"]
    # On main its last commits, on a branch what came since it left, committed or not.
    answer, given = checkout("--changed")
    assert answer.returncode == 0, answer.stderr
    assert given == ["clang-format sim/base/new.cpp", "clang-tidy sim/base/new.cpp"]
    checkout.git("checkout", "-q", "-b", "mine")
    checkout.write("sim/base/head.hpp", "a header")
    checkout.write("sim/base/user.cpp", '#include "sim/base/head.hpp"')
    checkout.git("commit", "-q", "-m", "a header and who includes it")
    (checkout.top / "sim/base/user.cpp").write_text('#include "sim/base/head.hpp"  // bad')
    (checkout.top / "sim/base/unknown.hpp").write_text("not yet added")
    answer, given = checkout("--changed")
    assert answer.returncode == 1
    assert given == ["clang-format sim/base/head.hpp", "clang-format sim/base/unknown.hpp",
                     "clang-format sim/base/user.cpp", "clang-tidy sim/base/user.cpp"]


def test_lint_checks_a_part_with_the_source_around_it(checkout):
    checkout.git("checkout", "-q", "-b", "mine")
    checkout.write("sim/base/inner.inc", "loops")
    checkout.write("sim/base/outer.inc", '#include "sim/base/inner.inc"')
    checkout.write("sim/base/user.cpp", '#define BODY "sim/base/outer.inc"')
    checkout.git("commit", "-q", "-m", "parts and who includes them")
    answer, given = checkout(str(checkout.top / "sim/base/inner.inc"))
    assert answer.returncode == 0, answer.stderr
    assert given == ["clang-format sim/base/inner.inc", "clang-tidy sim/base/user.cpp"]


def test_lint_of_another_version_is_skipped_and_said(checkout, tmp_path, capsys):
    path = tmp_path / "lint.xml"
    answer, given = checkout("--results", path, VERSION="19")
    assert (answer.returncode, given) == (0, [])
    assert summarise.main([f"lint={path}"]) == 0
    shown = capsys.readouterr().out
    assert "clang-format 14 is not installed" in shown and "0 failed, 2 skipped" in shown


def test_a_lint_that_fails_counts_as_failed(checkout, tmp_path, capsys):
    path = tmp_path / "lint.xml"
    checkout("--results", path)
    assert summarise.main([f"lint={path}"]) == 1
    assert "failed: lint: clang-format" in capsys.readouterr().out


def test_the_sweep_table_has_a_row_per_factor_and_a_column_per_router(tmp_path, capsys):
    sweep = tmp_path / "sweep.csv"
    sweep.write_text(
        "status,router,capacity_factor,tokens_per_s_per_gpu,residual_loss\n"
        "ok,top1,0.5,12345.6,0.5\nok,top1,1,10300,0.0081\nrefused,top2,0.5,,\nok,top2,1,9000,\n"
    )
    sweep_table.main(str(sweep))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["CF", "top1", "top2"]
    assert lines[2].split() == ["0.5", "12.3k", "50.00", "%", "-"]
    assert lines[3].split() == ["1", "10.3k", "0.81", "%", "9.0k"]


def test_measured_points_of_the_shipped_study_leave_out_the_contradictory_rows(capsys):
    measured_points.main(str(ROOT / "profiles/studies/zeng2024-speeds.json"))
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    excluded = {(r["router"], r["capacity_factor"]) for r in rows if r["excluded"] == "true"}
    assert excluded == {("top1", "0.75"), ("top1", "0.5")}
    drawn = [row for row in rows if row["mode"] == "prefill" and row["excluded"] == "false"]
    assert len(drawn) == 10
    first = {"router": "top1", "capacity_factor": "1", "tokens_per_s_per_gpu": "9400"}
    assert first.items() <= drawn[0].items()


def test_files_are_short_enough_to_be_read():
    kinds = (".py", ".cpp", ".hpp", ".cu", ".cuh", ".inc")
    files = [path for folder in ("sim", "kernels", "tools", "tests") for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    assert len(files) > 1000
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    long = {name: count for name, count in lines.items() if count > MOST_LINES}
    assert not long, f"split by subject: {long}"
