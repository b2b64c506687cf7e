"""What tools/Containerfile names is in this tree. Building it takes a network and a container engine."""

import json
import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "tools" / "Containerfile").read_text()


def test_the_package_comes_from_the_folder_of_its_preset():
    preset, = re.findall(r"cmake --preset (\S+)", TEXT)
    presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    assert preset in [one["name"] for one in presets]
    assert f"cmake --build build/{preset} --target package" in TEXT
    assert f"COPY --from=build /moesim/build/{preset}/moesim_*.deb" in TEXT


def test_its_settings_are_options_of_the_build():
    options = re.findall(r"^option\((\w+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
    settings = re.findall(r"-D(\w+)=", TEXT)
    assert settings and set(settings) <= set(options)


def test_its_packages_are_those_of_the_tools(tmp_path):
    step, = re.findall(r"^RUN (bash .*?)\n(?=\S)", TEXT, re.MULTILINE | re.DOTALL)
    # The step itself, with an apt-get that prints its words.
    stand_in = tmp_path / "apt-get"
    stand_in.write_text('#!/bin/sh\necho "$@"\n')
    stand_in.chmod(0o755)
    told = subprocess.run(["sh", "-c", step.replace("\\\n", "")], cwd=ROOT, capture_output=True, text=True,
                          timeout=30, check=True,
                          env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}).stdout
    update, install = told.splitlines()
    assert update == "update" and install.startswith("install -y")
    assert {"g++", "cmake", "libfmt-dev", "git", "dpkg-dev"} <= set(install.split())
