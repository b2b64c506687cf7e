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


# Folders beside them that no option of names offers.
@pytest.mark.parametrize(("words", "some", "others"), [
    (("simulate", "--router", ""), {"top1", "top8", "random", "random:balanced", "scomoe:"}, {"+fr", "soft.csv"}),
    (("train", "--router", "top"), {"top1", "top2"}, {"dropless"}),
    (("simulate", "--routing", ""), {"balanced", "zipf:", "trace:"}, {"soft.csv"}),
    (("predict", "--op", ""), {"gemm", "expert-ffn", "all-to-all"}, {"soft.csv"}),
    (("predict", "--dtype", ""), {"bf16", "fp8_block"}, {"soft.csv"}),
    (("predict", "--kernel", ""), {"fused", "activation"}, {"soft.csv"}),
    (("predict", "--transport", ""), {"gpu", "proxy"}, {"soft.csv"}),
    (("predict", "--network", ""), {"auto", "flows"}, {"soft.csv"}),
    (("predict", "--schedule", ""), {"two-level", "burst", "ring", "tree"}, {"soft.csv"}),
    (("predict", "--format", ""), {"table", "csv", "json"}, {"soft.csv"}),
    (("options", "--format", ""), {"table", "json"}, {"csv"}),
    (("predict", "--dispatcher", ""), {"deepep", "soft.csv"}, {"all-to-all"}),
    (("train", "--dispatcher", ""), {"deepep", "all-to-all", "soft.csv"}, set()),
    (("train", "--software", ""), {"megatron-bridge", "simumax", "aws", "soft.csv"}, set()),
    (("calibrate", "--software", ""), {"megatron-bridge"}, {"soft.csv"}),
    (("import", "--base", ""), {"h100-sxm", "soft.csv"}, set()),
    (("import", "--op", ""), {"all-to-all", "send-receive"}, {"soft.csv"}),
    (("import", "--origin", ""), {"measured", "synthetic"}, {"soft.csv"}),
    (("profile", "--suite", ""), {"gemm", "memory"}, {"soft.csv"}),
    (("simulate", "--mode", ""), {"train", "prefill"}, {"soft.csv"}),
    (("validate", ""), {"speeds", "training"}, {"soft.csv", "--data"}),
    (("completion", ""), {"bash", "zsh", "fish", "man"}, {"soft.csv"}),
    (("plot", ""), {"h100-sxm", "soft.csv"}, set()),
    (("merge", ""), {"soft.csv"}, {"--out"}),
    (("doctor", ""), {"--format", "--out"}, {"soft.csv"}),
    (("help", ""), {"train", "sweep"}, {"soft.csv"})])
def test_bash_offers_what_an_option_takes(tmp_path, words, some, others):
    (tmp_path / "soft.csv").write_text("")
    found = offered(tmp_path, "moesim", *words)
    assert some <= set(found) and not others & set(found), found
    assert len(found) == len(set(found)), found


def test_bash_goes_on_behind_a_colon_and_an_equals_sign(tmp_path):
    """Both are words of their own in COMP_WORDS, and what is offered replaces what stands behind them."""
    (tmp_path / "recorded").mkdir()
    assert offered(tmp_path, "moesim", "simulate", "--mode", "=", "tr") == ["train"]
    assert offered(tmp_path, "moesim", "simulate", "--mode", "=") == ["train", "prefill"]
    assert offered(tmp_path, "moesim", "simulate", "--router", "random", ":", "b") == ["balanced"]
    assert offered(tmp_path, "moesim", "simulate", "--routing", "trace", ":", "rec") == ["recorded"]
    assert offered(tmp_path, "moesim", "simulate", "--routing", "=", "trace", ":", "r") == ["recorded"]
    assert offered(tmp_path, "moesim", "simulate", "--routing", "zipf", ":", "rec") == []


@pytest.mark.parametrize("command", ["simulate", "train", "plot"])
def test_every_option_of_the_help_is_offered_and_in_the_manual(tmp_path, command):
    options = set(re.findall(r"^  (--[a-z-]+)", succeed(command, "--help"), re.MULTILINE))
    assert options <= set(offered(tmp_path, "moesim", command, "--"))
    manual = succeed("completion", "man").replace("\\-", "-")
    section = manual.split(f".SS moesim {command} ")[1].split(".SS ")[0]
    assert all(f".B {option}" in section for option in options)


def test_fish_has_the_values_too():
    fish = succeed("completion", "fish").splitlines()

    def line(command, rest):
        begin = f"complete -c moesim -n '__fish_seen_subcommand_from {command}' {rest}"
        return next(each for each in fish if each.startswith(begin))

    assert " -x -a 'dense top1 top2 " in line("simulate", "-l router ")
    assert " -r -F -a 'deepep " in line("predict", "-l dispatcher ")
    assert " -x -a 'gemm " in line("predict", "-l op ")
    assert line("validate", "-f -a ") and line("plot", "-F -a ") and line("doctor", "-f -a ''")


def test_without_documents_the_rest_is_offered(tmp_path):
    text = succeed("completion", "bash", env={"MOESIM_PROFILES": str(tmp_path)})
    assert "--software) values='FILE' ;;" in text and "--mode) values='train prefill' ;;" in text


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
