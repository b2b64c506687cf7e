"""moesim completion: what a shell offers, and the manual page, agree with the options there are."""

import re
import shutil
import subprocess

import pytest
from command_line import expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary


def offered(tmp_path, *words):
    """What bash offers for the last of the words."""
    script = tmp_path / "moesim.bash"
    script.write_text(succeed("completion", "bash"))
    line = " ".join(f"'{word}'" for word in words)
    result = subprocess.run(["bash", "-c", f"source '{script}'; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
                             '_moesim; printf "%s\\n" "${COMPREPLY[@]}"'],
                            capture_output=True, text=True, timeout=30, check=True, cwd=tmp_path)
    assert result.stderr == ""
    return result.stdout.split()


def commands():
    return re.findall(r"^  ([a-z]+) ", succeed("--help"), re.MULTILINE)


def test_bash_offers_commands_options_and_values(tmp_path):
    assert offered(tmp_path, "moesim", "reco") == ["recommend"]
    assert set(commands()) <= set(offered(tmp_path, "moesim", ""))
    assert offered(tmp_path, "moesim", "train", "--pipeline-p") == ["--pipeline-parallel"]
    assert "h100-sxm" in offered(tmp_path, "moesim", "simulate", "--profile", "")
    assert offered(tmp_path, "moesim", "simulate", "--model", "deepseek-v3") == ["deepseek-v3", "deepseek-v3-4layers"]
    assert offered(tmp_path, "moesim", "train", "--precision", "mx") == ["mxfp8"]
    assert {"train", "prefill"} <= set(offered(tmp_path, "moesim", "recommend", "--mode", ""))
    assert "+fr" not in offered(tmp_path, "moesim", "train", "--router", "")
    assert offered(tmp_path, "moesim", "simulate", "--gpus", "") == []
    (tmp_path / "speed.csv").write_text("")
    assert offered(tmp_path, "moesim", "plot", "spe") == ["speed.csv"]
    assert offered(tmp_path, "moesim", "simulate", "--profile", "spe") == ["speed.csv"]


@pytest.mark.parametrize("command", ["simulate", "train", "plot"])
def test_every_option_of_the_help_is_offered_and_in_the_manual(tmp_path, command):
    options = set(re.findall(r"^  (--[a-z-]+)", succeed(command, "--help"), re.MULTILINE))
    assert options <= set(offered(tmp_path, "moesim", command, "--"))
    manual = succeed("completion", "man").replace("\\-", "-")
    section = manual.split(f".SS moesim {command} ")[1].split(".SS ")[0]
    assert all(f".B {option}" in section for option in options)


def test_other_shells_know_every_command():
    fish, zsh = succeed("completion", "fish"), succeed("completion", "zsh")
    assert zsh.startswith("#compdef moesim\n")
    for command in commands():
        assert f"-f -a {command} " in fish and f"    {command})" in zsh


def test_the_manual_is_set_without_a_warning():
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is missing")
    result = subprocess.run([groff, "-man", "-Tutf8", "-ww"], input=succeed("completion", "man"), capture_output=True,
                            text=True, timeout=60, check=True)
    assert result.stderr == "" and "moesim train" in result.stdout


def test_unknown_shells_are_named():
    expect_error(moesim("completion", "tcsh"), 2, "'tcsh'", "bash, zsh, fish, man")
    expect_error(moesim("completion"), 2, "for what?", "bash, zsh, fish, man")
