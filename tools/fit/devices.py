"""Figures of the devices themselves, each with the public document that states it."""

DATASHEETS = {
    "a100-sxm-80gb": "NVIDIA A100 Tensor Core GPU datasheet (2021) and Ampere architecture "
                     "whitepaper",
    "h100-sxm": "NVIDIA H100 Tensor Core GPU datasheet (2023) and Hopper architecture whitepaper",
    "h200-sxm": "NVIDIA H200 Tensor Core GPU datasheet (2024) and Hopper architecture whitepaper",
}
NAMES = {"a100-sxm-80gb": "NVIDIA A100-SXM4-80GB", "h100-sxm": "NVIDIA H100 80GB HBM3",
         "h200-sxm": "NVIDIA H200"}
# The shipped cluster (profiles/clusters) that nodes of this GPU usually form.
CLUSTERS = {"a100-sxm-80gb": "dgx-a100", "h100-sxm": "hgx-h100", "h200-sxm": "hgx-h200"}
# name: (SMs, HBM bytes, HBM B/s, L2 bytes, dense bf16 FLOP/s, NVLink B/s per direction)
# The datasheets' "80 GB" and "141 GB" of HBM are binary: stacks of 16 GiB and of 24 GiB.
FIGURES = {
    "a100-sxm-80gb": (108, 80 * 2**30, 2.039e12, 40 * 2**20, 312e12, 300e9),
    "h100-sxm": (132, 80 * 2**30, 3.35e12, 50 * 2**20, 989.4e12, 450e9),
    "h200-sxm": (132, 141 * 2**30, 4.8e12, 50 * 2**20, 989.4e12, 450e9),
}
KEYS = (("sms", "streaming multiprocessors"), ("hbm_bytes", "bytes"),
        ("hbm_bytes_per_second", "bytes/s"), ("l2_bytes", "bytes"), ("peak_bf16_flops", "FLOP/s"),
        ("nvlink_bytes_per_second", "bytes/s per direction"))


def device(profile):
    """The document's description of one GPU and its node."""
    def figure(value, unit, source=DATASHEETS[profile]):
        return {"value": value, "unit": unit, "origin": "datasheet", "source": source}

    result = {"name": NAMES[profile], "uuid": None}
    for (key, unit), value in zip(KEYS, FIGURES[profile]):
        result[key] = figure(value, unit)
    result["usual_cluster"] = CLUSTERS[profile]
    result["gpus_per_node"] = figure(8, "GPUs in one NVLink domain", "NVIDIA HGX 8-GPU baseboard")
    return result


def all_devices():
    return {profile: device(profile) for profile in NAMES}
