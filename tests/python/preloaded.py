"""A library between moesim and the C library, for what happens between two of its calls."""

import shutil
import subprocess

import pytest

HEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
"""


def preloaded(folder, source):
    """The environment with a library of this C source, behind HEAD."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) is here")
    (folder / "preloaded.c").write_text(HEAD + source)
    library = folder / "preloaded.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "preloaded.c", "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}
