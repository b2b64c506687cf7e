"""Help texts: as wide as the terminal, and never too wide to read."""

import os
import re
import subprocess

import pytest
from command_line import BINARY, Terminal, as_json, moesim, needs_binary, succeed
from test_cli_contract import COMMANDS

pytestmark = needs_binary


def on_a_terminal(columns, *words):
    """What a run prints on a terminal of that width."""
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    terminal = Terminal(columns)
    subprocess.run([BINARY, *words], stdout=terminal.end, stderr=subprocess.DEVNULL, env=environment, check=True)
    return terminal.text().replace("\r\n", "\n")


@pytest.mark.parametrize("words", [["--help"], *([command, "--help"] for command in
                                                 (*COMMANDS, "profile"))], ids=" ".join)
def test_help_fits_the_terminal(words):
    if words[0] == "profile" and "  profile " not in succeed("--help"):
        pytest.skip("this build has no profile command")
    # Off a terminal, and on a wide one, 100 columns: longer lines are hard to read.
    assert max(map(len, succeed(*words).splitlines())) <= 100
    for columns, most in ((80, 80), (300, 100)):
        shown = on_a_terminal(columns, *words)
        assert max(map(len, shown.splitlines())) <= most
        assert shown.split() == succeed(*words).split()  # broken between words alone


def test_help_is_as_wide_as_columns_says():
    for columns, most in (("80", 80), ("90", 90), ("500", 100), ("x", 100)):
        lines = succeed("simulate", "--help", env={"COLUMNS": columns}).splitlines()
        assert most - 5 <= max(map(len, lines)) <= most, columns


def test_help_says_what_jitter_is_of():
    text = " ".join(succeed("simulate", "--help").split())
    assert "spread of each operation (attention, all experts, ...: not of each of its kernels) on each GPU" in text


# What stands for the parameters in the forms of values.
PARAMETERS = {"LOCAL": "0.4", "NODE": "0.3", "P": "0.1", "GROUPS": "4", "KEPT": "2", "SIGMA": "0.1", "A": "1",
              "X": "4", "SHARE": "0.25", "R": "4"}


@pytest.mark.parametrize("option", ["router", "routing"])
def test_help_of_train_lists_the_values_that_train_takes(option):
    text = succeed("train", "--help")
    listed = text.split(f"\n  --{option} ")[1].split("\n  --")[0].split()
    values = next(each["values"] for each in as_json("options")["options"]
                  if each["name"] == option)
    forms = [value["name"] for value in values]
    taken = []
    for form in forms:
        name = re.sub(r"[\[,].*", "", form)  # without what may be left out
        if "FILE" in name or name.startswith("+"):
            continue
        name = re.sub("[A-Z]+", lambda word: PARAMETERS[word[0]], name)
        taken.append(moesim("train", "--gpus", 8, "--sequence-length", 256, f"--{option}", name).returncode == 0)
        assert (form.split()[0] in listed) == taken[-1], form
    assert not all(taken) and sum(taken) > 5
