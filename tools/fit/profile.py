"""Assembles a hardware profile document from the fitted curves."""
import importlib.util
import json

from tools.fit import collectives, devices, expert_ffn, memory, noise

FORMAT, VERSION = "moesim-profile", 1
TOOL_VERSION = "0.1.0"
PROFILES = tuple(devices.NAMES)
SUITES = ("gemm", "expert_ffn", "attention", "latent_attention", "quantize", "memory", "collectives")
TYPED = SUITES[:5]  # their curves are of one data type each
DTYPES = ("bf16", "fp8", "fp8_block", "nvfp4", "mxfp4")
# Machines of which the public tables in use hold only exchanges.
ONLY_EXCHANGES = ("l40s", "rtx-pro-6000")
# What no public table in use holds: {profile: [(suite, reason, hint)]}; below, of profiles that hold only
# exchanges, and of all.
MISSING = {
    "a100-sxm-80gb": [
        ("expert_ffn balanced", "the public table has power-law loads only",
         "derived; moesim profile on an A100 would measure it"),
        ("attention head sizes other than 128", "the public table has head size 128 only",
         "derived from H100's ratio of head sizes"),
        ("gemm beyond m = 8192", "the public table stops there", "constant efficiency in m"),
    ],
    "h100-sxm": [],
    **{profile: [("memory-bound kernels", "no public table", "derived from H100 by memory bandwidth")]
       for profile in ("b200-sxm", "gb200", "b300-sxm", "gb300")},
    "h200-sxm": [
        ("collectives with 8 GPUs", "the public runs have 2 and 4 GPUs",
         "derived from H100's runs, scaled by half the ratio of the two machines at 2 and 4 GPUs"),
        ("expert_ffn", "no public table in use", "derived from H100's curves"),
        ("memory-bound kernels", "no public table", "derived from H100 by memory bandwidth"),
    ],
}
MISSING_EVERYWHERE = [("collectives across nodes", "a profile is one node", "describe them in a cluster"),
                      ("attention backward", "the public tables are forward only",
                       "2.5 x forward by FLOPs, assumed"),
                      ("permute and combine kernels", "no public table", "assumed share of the bandwidth")]
MISSING_KERNELS = [
    (suite, "this profile holds exchanges alone: no public table of the machine's kernels is in use",
     "moesim predict answers its exchanges")
    for suite in ("gemm", "attention", "expert_ffn", "streaming kernels, activation kernels and "
                  "normalization kernels", "permute and combine")]


def suite_curves(suite, data, profile, every_device, dtypes=None):
    """The curves of one suite, of these data types (None: all), or [] if its module is not part of
    this checkout."""
    if suite == "memory":
        return memory.curves(data, profile, every_device)
    if suite == "collectives":
        return collectives.curves(data, profile)
    if suite == "expert_ffn" and profile in expert_ffn.siblings.MODEL_OF:
        return expert_ffn.siblings.curves(data, profile, every_device, dtypes)
    if importlib.util.find_spec(f"tools.fit.{suite}") is None:
        return []
    module = importlib.import_module(f"tools.fit.{suite}")
    return module.curves(data, profile, every_device, dtypes)


def suite_of(curve):
    names = {**{suite.replace("_", "-"): suite for suite in SUITES},
             "permute": "memory", "combine": "memory"}
    return names.get(curve["op"], "collectives")


def data_type(curve):
    return curve["params"].get("dtype", "bf16")


def of_sibling(profile):
    """What is said of exchanges that were measured on a sibling alone."""
    sibling = collectives.SIBLING_PROFILES.get(profile)
    return [] if sibling is None else [
        ("exchanges of this very machine", f"derived from {sibling}'s, with wider error bars: none of "
         "its own runs is in use below 4 GiB", "moesim import takes nccl-tests output of your own")]


def missing(profile):
    entries = (MISSING_KERNELS + MISSING_EVERYWHERE[:1] if profile in ONLY_EXCHANGES
               else MISSING[profile] + of_sibling(profile) + MISSING_EVERYWHERE)
    return [{"suite": suite, "reason": reason, "hint": hint} for suite, reason, hint in entries]


def place(curve):
    """Curves stand in the order of suites and, within one, of data types."""
    suite = suite_of(curve)
    return SUITES.index(suite), DTYPES.index(data_type(curve)) if suite in TYPED else 0


def document(profile, curves):
    """The whole document; figures that a published profile cannot have are null with a reason."""
    every_device = devices.all_devices()
    stands_in = devices.STANDS_IN_FOR.get(profile)
    products = devices.TRAINING_PRODUCTS.get(profile)
    return {
        "format": FORMAT, "version": VERSION, "name": profile,
        "tool": {"name": "tools/fit", "version": TOOL_VERSION, "seed": 20240612},
        "conditions": {
            "measured_by": "third parties; each curve names its source", "arguments": None,
            "environment": None, "driver": None, "cuda_runtime": None, "cupti": None,
            "reason": "the sources do not record them; NCCL versions are in the curves' keys"},
        "devices": [every_device[profile]],
        "topology": devices.TOPOLOGIES[profile],
        **({} if stands_in is None else {"kernels_stand_in_for": stands_in}),
        **({} if products is None else {"training_products": products}),
        "curves": sorted(curves, key=place),
        "points": [],
        "missing": missing(profile),
    }


def build(profile, data, only=None, existing=None, dtypes=None):
    """A document with the suites of `only` and the data types of `dtypes` (all if None) fitted anew
    and the rest taken from the `existing` document."""
    every_device, curves = devices.all_devices(), []
    there = [] if existing is None else existing["curves"]
    for suite in SUITES[-1:] if profile in ONLY_EXCHANGES else SUITES:
        kept = [each for each in there if suite_of(each) == suite]
        if only is None or suite in only:
            curves += suite_curves(suite, data, profile, every_device, dtypes)
            kept = [each for each in kept if suite in TYPED and dtypes is not None
                    and data_type(each) not in dtypes]
        curves += kept
    for curve in curves:
        if curve["op"] == "gemm" and "noise" not in curve:
            curve["noise"] = noise.of_products(data, profile, data_type(curve))
    return document(profile, curves)


def text(value, depth=0, width=96):
    """JSON with short arrays and objects on one line: a curve stays readable and diffs small."""
    flat = json.dumps(value)
    if len(flat) + 2 * depth <= width or not isinstance(value, (dict, list)) or not value:
        return flat
    if "region" in value:  # a line of a table
        return flat
    pad, end = "  " * (depth + 1), "  " * depth
    if isinstance(value, dict):
        lines = [f"{json.dumps(key)}: {text(each, depth + 1, width)}" for key, each in value.items()]
        return "{\n" + ",\n".join(pad + line for line in lines) + "\n" + end + "}"
    if all(isinstance(each, (int, float)) for each in value):
        return "[\n" + wrapped(value, pad, width) + "\n" + end + "]"
    return "[\n" + ",\n".join(pad + text(each, depth + 1, width) for each in value) + "\n" + end + "]"


def wrapped(numbers, pad, width):
    lines, line = [], pad
    for position, number in enumerate(numbers):
        piece = json.dumps(number) + ("" if position == len(numbers) - 1 else ", ")
        if len(line) + len(piece) > width and line != pad:
            lines.append(line.rstrip())
            line = pad
        line += piece
    return "\n".join([*lines, line])
