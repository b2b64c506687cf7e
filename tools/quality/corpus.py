"""The text of the experiment: the King James Bible of Debian's package bible-kjv-text 4.38, whose
copyright has expired. One verse a line, references removed: 4,137,850 bytes."""
import hashlib
import re
import subprocess

import numpy as np

SHA256 = "b5c4940bcfeee072c0935b5200d0f9d88a00a0199cb0961d16133458fcdfae5d"
BLOCK = 4096  # bytes; every 16th block is held out
HELD_OUT_EVERY = 16


class Unavailable(Exception):
    """The text is not available; the message says what to do."""


def _verses(path):
    if path:
        try:
            with open(path, encoding="ascii") as file:
                return file.read()
        except OSError as error:
            raise Unavailable(f"{path}: cannot read: {error.strerror}") from None
    try:
        return subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, text=True,
                              capture_output=True).stdout
    except FileNotFoundError:
        raise Unavailable("the command 'bible' is missing: apt install bible-kjv, or give its "
                          "output of `bible -f gen1:1-rev22:21` as --verses FILE") from None


class Corpus:
    """`symbols` bytes that occur, `train` and `held_out` blocks of symbol numbers."""

    def __init__(self, verses_path=None):
        text = re.sub(r"^\S+ ", "", _verses(verses_path), flags=re.MULTILINE).encode("ascii")
        digest = hashlib.sha256(text).hexdigest()
        if digest != SHA256:
            raise Unavailable(f"the prepared text has sha256 {digest}, not {SHA256}: results "
                              "would not compare; bible-kjv-text 4.38 is wanted")
        codes = np.frombuffer(text, np.uint8)
        values, numbers = np.unique(codes, return_inverse=True)
        self.symbols = len(values)
        blocks = numbers[:len(numbers) // BLOCK * BLOCK].reshape(-1, BLOCK)
        held = np.arange(len(blocks)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        self.train, self.held_out = blocks[~held], blocks[held]

    @staticmethod
    def sample(blocks, count, length, random):
        """`count` stretches of length + 1 symbols, each inside one block: [count, length + 1]."""
        block = random.integers(0, len(blocks), count)
        start = random.integers(0, BLOCK - length, count)
        return blocks[block[:, None], start[:, None] + np.arange(length + 1)]
