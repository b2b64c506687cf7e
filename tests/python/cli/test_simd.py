"""The environment variable MOESIM_SIMD lowers the instruction set, and results stay the same."""

from command_line import SMALL, moesim, needs_binary, succeed

pytestmark = needs_binary


def test_the_baseline_gives_the_same_results():
    words = ("simulate", *SMALL, "--router", "top2+fr+ir", "--format", "csv")
    assert succeed(*words, env={"MOESIM_SIMD": "baseline"}) == succeed(*words)
    doctor = moesim("doctor", env={"MOESIM_SIMD": "baseline"}).stdout
    assert any("SIMD" in line and "baseline" in line for line in doctor.splitlines())


def test_an_unknown_level_lists_the_levels():
    result = moesim("simulate", *SMALL, env={"MOESIM_SIMD": "sse9"})
    assert result.returncode == 2
    assert "MOESIM_SIMD: unknown value 'sse9'" in result.stderr and "avx2" in result.stderr
