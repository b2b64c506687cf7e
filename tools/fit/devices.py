"""Figures of the devices themselves, each with the public document that states it, and how the GPUs
of a node are joined."""

DATASHEETS = {
    "a100-sxm-80gb": "NVIDIA A100 Tensor Core GPU datasheet (2021) and Ampere architecture "
                     "whitepaper",
    "h100-sxm": "NVIDIA H100 Tensor Core GPU datasheet (2023) and Hopper architecture whitepaper",
    "h200-sxm": "NVIDIA H200 Tensor Core GPU datasheet (2024) and Hopper architecture whitepaper",
    "b200-sxm": "NVIDIA HGX B200 datasheet (2024)",
    "gb200": "NVIDIA GB200 NVL72 datasheet (2024)",
    "b300-sxm": "NVIDIA HGX B300 datasheet (2025)",
    "gb300": "NVIDIA GB300 NVL72 datasheet (2025)",
    "l40s": "NVIDIA L40S datasheet (2023) and Ada architecture whitepaper",
    "rtx-pro-6000": "NVIDIA RTX PRO 6000 Blackwell Server Edition datasheet (2025); bf16 as an "
                    "eighth of its sparse FP4 figure",
}
NAMES = {"a100-sxm-80gb": "NVIDIA A100-SXM4-80GB", "h100-sxm": "NVIDIA H100 80GB HBM3",
         "h200-sxm": "NVIDIA H200", "b200-sxm": "NVIDIA B200", "gb200": "NVIDIA GB200",
         "b300-sxm": "NVIDIA B300", "gb300": "NVIDIA GB300",
         "l40s": "NVIDIA L40S",
         "rtx-pro-6000": "NVIDIA RTX PRO 6000 Blackwell Server Edition"}
# Figures that no datasheet states: (profile, key) -> (origin, source). Tile models count waves over
# the SMs and footprints in units of the L2; both are fitted about these figures.
NOT_IN_DATASHEETS = {
    ("b200-sxm", "sms"): ("published", "Chips and Cheese, Nvidia's B200 (2025): 74 of 80 on each of "
                                       "two dies"),
    ("b200-sxm", "l2_bytes"): ("assumed", "no document was found that states it"),
    ("gb200", "sms"): ("assumed", "no document was found that states it"),
    ("gb200", "l2_bytes"): ("assumed", "no document was found that states it"),
    **{(profile, key): ("assumed", "no document was consulted for it")
       for profile in ("b300-sxm", "gb300") for key in ("sms", "l2_bytes")},
    **{(profile, "hbm_bytes"): ("published", f"{mib:,} MiB: memory in all that the driver reports "
                                             "(nvidia-smi), as public logs have it")
       for profile, mib in (("b200-sxm", 183359), ("gb200", 189471), ("b300-sxm", 275040),
                            ("gb300", 284208))},
}
# The shipped cluster (profiles/clusters) that nodes of this GPU usually form.
CLUSTERS = {"a100-sxm-80gb": "dgx-a100", "h100-sxm": "hgx-h100", "h200-sxm": "hgx-h200",
            "b200-sxm": "hgx-b200", "gb200": "gb200-nvl72",
            "b300-sxm": "hgx-b300", "gb300": "gb300-nvl72", "l40s": "pcie-l40s"}
# name: (SMs, HBM bytes, HBM B/s, L2 bytes, dense bf16 FLOP/s, NVLink or PCIe B/s per direction)
# The datasheets' "80 GB" and "141 GB" of HBM are binary: stacks of 16 GiB and of 24 GiB. Blackwell's
# are as well, but less than whole stacks: what the driver reports.
FIGURES = {
    "a100-sxm-80gb": (108, 80 * 2**30, 2.039e12, 40 * 2**20, 312e12, 300e9),
    "h100-sxm": (132, 80 * 2**30, 3.35e12, 50 * 2**20, 989.4e12, 450e9),
    "h200-sxm": (132, 141 * 2**30, 4.8e12, 50 * 2**20, 989.4e12, 450e9),
    "b200-sxm": (148, 183359 * 2**20, 8e12, 126 * 2**20, 2250e12, 900e9),
    "gb200": (152, 189471 * 2**20, 8e12, 126 * 2**20, 2500e12, 900e9),
    "b300-sxm": (148, 275040 * 2**20, 8e12, 126 * 2**20, 2250e12, 900e9),
    "gb300": (152, 284208 * 2**20, 8e12, 126 * 2**20, 2500e12, 900e9),
    "l40s": (142, 48 * 2**30, 864e9, 96 * 2**20, 362.05e12, 32e9),
    "rtx-pro-6000": (188, 96 * 2**30, 1597e9, 128 * 2**20, 500e12, 64e9),
}
# What products hold within the board's power. name: (W, pJ per FLOP in bf16, source)
BLACKWELL_POWER = ("0.94 pJ per FLOP: over the long products of a public table, on average of forward, input and weight "
                   "gradients, B200 at 1,000 W holds 1.06 PFLOP/s (MooreThreads/SimuMax v1.2, b200_bf16_ceperm.json)")
HOPPER_POWER = "1.06 pJ per FLOP: fitted to public training steps (sim/training/README.md)"
AMPERE_POWER = ("1.72 pJ per FLOP: products of 4 ms and more in microsoft/vidur's operator profiles of an A100 hold 232 "
                "TFLOP/s in the median (MIT)")
POWERS = {
    "a100-sxm-80gb": (400, 1.72, AMPERE_POWER),
    "h100-sxm": (700, 1.06, HOPPER_POWER), "h200-sxm": (700, 1.06, HOPPER_POWER),
    "b200-sxm": (1000, 0.94, BLACKWELL_POWER), "b300-sxm": (1100, 0.94, BLACKWELL_POWER),
    "gb200": (1200, 0.94, BLACKWELL_POWER), "gb300": (1400, 0.94, BLACKWELL_POWER),
}
# What products in FP8 hold in a training step: (FLOP/s, origin, source).
HOPPER_FP8_BLOCK = (
    993e12, "derived",
    "products of experts forward and of their inputs' gradients in DeepSeek's own training step, 16 calls on 112 of the 132 "
    "SMs of an H800 (deepseek-ai/profile-data): 0.90 to 1.10 PFLOP/s, all of them 0.993. Taken as what the board's power "
    "allows, since published layers in FP8 on all SMs are no faster; were it the SMs, it would be 1.17")
# A product in a step is no faster than one alone.
HOPPER_FP8 = (1.3e15, "derived",
              "products of cuBLASLt alone on an H200 (profile h200-sxm-measured): 1.28 to 1.33 PFLOP/s for 8,192 and more rows. "
              "What they hold under load was not measured")
FP8_RATES = {profile: {"sustained_fp8_flops": HOPPER_FP8, "sustained_fp8_block_flops": HOPPER_FP8_BLOCK}
             for profile in ("h100-sxm", "h200-sxm")}
KEYS = (("sms", "streaming multiprocessors"), ("hbm_bytes", "bytes"),
        ("hbm_bytes_per_second", "bytes/s"), ("l2_bytes", "bytes"), ("peak_bf16_flops", "FLOP/s"),
        ("nvlink_bytes_per_second", "bytes/s per direction"))
HGX = "NVIDIA HGX 8-GPU baseboard"
# Peak to and from the host's memory, per GPU and direction: PCIe x16 or NVLink-C2C. name: (key, B/s,
# origin, source)
GRACE = "NVLink-C2C, 900 GB/s in both directions together, of a Grace CPU and its two GPUs"
HOST_LINKS = {
    **{profile: ("pcie_bytes_per_second", rate, "datasheet", DATASHEETS[profile])
       for profile, rate in (("a100-sxm-80gb", 32e9), ("h100-sxm", 64e9), ("h200-sxm", 64e9),
                             ("b200-sxm", 64e9))},
    "b300-sxm": ("pcie_bytes_per_second", 64e9, "assumed",
                 "PCIe 5.0 of the hosts of HGX B300; the GPU itself has PCIe 6.0"),
    **{profile: ("c2c_bytes_per_second", 225e9, "derived", f"{DATASHEETS[profile]}: {GRACE}")
       for profile in ("gb200", "gb300")},
}
# How the GPUs of a node are connected: exchanges among more GPUs than were measured are based on it.
# NVLink switches from Hopper on add up what passes them (SHARP).
TOPOLOGIES = {
    "a100-sxm-80gb": {"kind": "nvswitch", "gpus_per_node": 8, "source": HGX},
    "h100-sxm": {"kind": "nvswitch", "gpus_per_node": 8, "switch_reduces": True, "source": HGX},
    "h200-sxm": {"kind": "nvswitch", "gpus_per_node": 8, "switch_reduces": True, "source": HGX},
    "b200-sxm": {"kind": "nvswitch", "gpus_per_node": 8, "switch_reduces": True, "source": HGX},
    "gb200": {"kind": "nvswitch", "gpus_per_node": 72, "switch_reduces": True,
              "source": "NVIDIA GB200 NVL72"},
    "b300-sxm": {"kind": "nvswitch", "gpus_per_node": 8, "switch_reduces": True, "source": HGX},
    "gb300": {"kind": "nvswitch", "gpus_per_node": 72, "switch_reduces": True,
              "source": "NVIDIA GB300 NVL72"},
    "l40s": {"kind": "pcie", "gpus_per_node": 4, "gpus_per_group": 2,
             "group_bytes_per_second": 6.1e9, "source": "the measured machine, not described",
             "note": "two groups of two, and the rate between them: derived from the all-to-all of "
                     "4 GPUs at 512 MiB, where 2 GPUs reach 22 GB/s each and 4 GPUs 4.6"},
    "rtx-pro-6000": {"kind": "pcie", "gpus_per_node": 8, "gpus_per_group": 4,
                     "group_bytes_per_second": 42e9, "source": "the measured machine, not described",
                     "note": "two groups of four, and the rate between them: derived from the "
                             "all-to-all of 8 GPUs at 512 MiB"},
}
# Profiles whose products a training step prices by the curve of another one.
TRAINING_PRODUCTS = {"gb200": {
    "profile": "b200-sxm",
    "source": "the same die; gb200's own table is of a board that was already slowed down: in bf16 0.8 to 1.1 PFLOP/s "
              "for products of more than 3 TFLOP and up to 1.57 for shorter ones, where b200-sxm's has 1.4 to 1.8 for "
              "both"}}
# Which GPUs without kernel curves of their own take those of a profile.
STANDS_IN_FOR = {
    "a100-sxm-80gb": {"compute_major": [0, 8]},
    "h100-sxm": {"compute_major": [9, 9]},
    "h200-sxm": {"compute_major": [10, 99], "device_names": ["H200"]},
}


def device(profile):
    """The document's description of one GPU and its node."""
    def figure(value, unit, source=DATASHEETS[profile], origin="datasheet"):
        return {"value": value, "unit": unit, "origin": origin, "source": source}

    result = {"name": NAMES[profile], "uuid": None}
    topology = TOPOLOGIES[profile]
    over_pcie = topology["kind"] == "pcie"
    for (key, unit), value in zip(KEYS, FIGURES[profile]):
        origin, source = NOT_IN_DATASHEETS.get((profile, key), ("datasheet", DATASHEETS[profile]))
        result[key.replace("nvlink", "pcie") if over_pcie else key] = figure(value, unit, source,
                                                                            origin)
        if key == "peak_bf16_flops" and profile in POWERS:
            result["sustained_bf16_flops"] = sustained_flops(*POWERS[profile], figure)
        if key == "peak_bf16_flops":
            for rate, (flops, origin, source) in FP8_RATES.get(profile, {}).items():
                result[rate] = figure(flops, "FLOP/s", source, origin)
    if profile in HOST_LINKS:
        key, rate, origin, source = HOST_LINKS[profile]
        result[key] = figure(rate, "bytes/s per direction", source, origin)
    if profile in CLUSTERS:
        result["usual_cluster"] = CLUSTERS[profile]
    unit = "GPUs in one PCIe box" if over_pcie else "GPUs in one NVLink domain"
    result["gpus_per_node"] = figure(topology["gpus_per_node"], unit, topology["source"])
    return result


def sustained_flops(watts, picojoules, source, figure):
    """What products in bf16 hold at the most that the board can be configured to draw."""
    return figure(float(round(watts / picojoules * 1e12)), "FLOP/s",
                  f"{watts:,} W of the datasheet at {source}", "derived")


def all_devices():
    return {profile: device(profile) for profile in NAMES}
