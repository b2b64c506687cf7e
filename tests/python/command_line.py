"""Runs the built moesim for the tests of this folder. tools/test names it in MOESIM_BIN."""

import csv
import fcntl
import io
import json
import os
import struct
import subprocess
import termios
import threading
from pathlib import Path

import pytest

BINARY = os.environ.get("MOESIM_BIN", "")
needs_binary = pytest.mark.skipif(not Path(BINARY).is_file(),
                                  reason="MOESIM_BIN does not name the built command; tools/test "
                                         "sets it")
# A scenario that takes a fraction of a second.
SMALL = ("--gpus", "8", "--expert-parallel", "8", "--sequence-length", "512", "--micro-batch", "1",
         "--replicas", "3")


def moesim(*words, cwd=None, env=None, stdout=subprocess.PIPE, timeout=300):
    return subprocess.run([BINARY, *map(str, words)], stdout=stdout, stderr=subprocess.PIPE,
                          text=True, cwd=cwd, env={**os.environ, **(env or {})}, timeout=timeout,
                          check=False)


def succeed(*words, **how):
    """The stdout of a run that must succeed."""
    result = moesim(*words, **how)
    assert result.returncode == 0, result.stderr
    return result.stdout


def as_json(*words, **how):
    """The result of a run that must succeed, as JSON has it."""
    return json.loads(succeed(*words, "--format", "json", **how))


def as_rows(*words, **how):
    """The rows of a run that must succeed, as the CSV has them: texts by the names of the columns."""
    return list(csv.DictReader(io.StringIO(succeed(*words, "--format", "csv", **how))))


class Terminal:
    """A pseudo-terminal on which a command writes to `end`, read from the start on.

    The tests keep `end` open and mark the end of the text themselves: once a command's exit closes the last one, Linux
    may drop what was not read yet.
    """
    MARK = b"\0"

    def __init__(self, columns=80):
        try:
            self.master, self.end = os.openpty()
        except OSError as error:
            pytest.skip(f"no pseudo-terminal is available here: {error}")
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._shown = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        while not self._shown.endswith(self.MARK):
            self._shown += os.read(self.master, 1 << 16)

    def so_far(self):
        return self._shown.decode(errors="replace")

    def text(self):
        """All that was written to it, for a command that has ended; closes it."""
        os.write(self.end, self.MARK)
        self._reader.join()
        os.close(self.end)
        os.close(self.master)
        return self._shown.removesuffix(self.MARK).decode()


def expect_error(result, code, *parts):
    """Of a run that must fail: its exit code, and one error that names `parts`."""
    assert result.returncode == code, (result.returncode, result.stderr)
    assert not result.stdout
    errors = [line for line in result.stderr.splitlines() if line.startswith("moesim: error: ")]
    assert len(errors) == 1, result.stderr
    for part in parts:
        assert part in errors[0], errors[0]


def refused(*words, parts, code=2):
    """A command that must fail, its notes and its error naming `parts`."""
    result = moesim(*words)
    assert result.returncode == code, result.stderr
    for part in parts:
        assert part in result.stderr, result.stderr


def trace_document(folder):
    """The document of an imported trace."""
    return json.loads((folder / "trace.json").read_text())


def written(path, rows):
    """The file, as a CSV of these dictionaries."""
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, rows[0].keys())
        out.writeheader()
        out.writerows(rows)
    return path
