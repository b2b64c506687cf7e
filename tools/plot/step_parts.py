"""The parts that sum to a step: their words, which are those of the text tables of moesim simulate and train, and their
looks, the same in all charts."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    words: str
    colour: str
    hatch: str = ""


# By column without "_ms". Neighbours differ in colour, and in grey by hatching or much in brightness.
PARTS = {
    "attention": Part("attention", "#0072B2"),
    "dense_ffn": Part("dense FFN", "#9ECAE1", "////"),
    "dense_FFN": Part("dense FFN", "#9ECAE1", "////"),
    "expert": Part("expert FFN", "#009E73"),
    "experts": Part("experts", "#009E73"),
    "router": Part("router", "#222222"),
    "router_and_rows": Part("router and rows", "#222222"),
    # Kernels on the GPU: "dispatch" and "combine" are the exchange.
    "dispatch_combine": Part("permute, unpermute", "#E69F00", "...."),
    "rectify": Part("rectify", "#F0E442", "\\\\\\\\"),
    # moesim train has dispatch and combine in its place: their colours.
    "exposed_exchange": Part("exposed exchange", "#D55E00", "xxxx"),
    "dispatch": Part("dispatch", "#D55E00", "xxxx"),
    "combine": Part("combine", "#FDAE6B"),
    "embedding_head": Part("embedding, head", "#A6761D", "////"),
    "recompute": Part("recompute", "#B2DF8A", "\\\\\\\\"),
    "tensor_exchange": Part("tensor exchange", "#56B4E9", "...."),
    "context_exchange": Part("context exchange", "#1B4F72"),
    "host": Part("host", "#666666", "...."),
    "bubble_and_p2p": Part("bubble and p2p", "#D9D9D9"),
    "gradient": Part("gradient", "#CC79A7", "////"),
    "gradients": Part("gradients", "#CC79A7", "////"),
    "parameters": Part("parameters", "#F2C6DC"),
    "optimizer": Part("optimizer", "#5B2A86"),
    "reruns": Part("reruns", "#8C2D04", "----"),
    "offload": Part("offload", "#41B6C4", "...."),
    "other": Part("other", "#BBBBBB", "----"),
}
# Colours of parts that are not among them, as a newer version may have.
MORE_COLOURS = ("#FB9A99", "#7A0000", "#86B049", "#4B0092")


def part_of(column, place=0):
    """The part of a column; one that is not known has its own words and a colour by its place."""
    name = column.removesuffix("_ms")
    return PARTS.get(name) or Part(name.replace("_", " "), MORE_COLOURS[place % len(MORE_COLOURS)], "||||")
