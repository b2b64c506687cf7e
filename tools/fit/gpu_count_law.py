"""The time of an exchange among more GPUs than were measured, from the size curves of fewer. The same
law as sim/profile/gpu_count_law.cpp; profiles/EXCHANGES.md explains it and quotes its errors.

All-to-all is grouped send and receive. Behind an NVLink switch
  * up to 32 KiB per peer NCCL gives a peer one channel: time goes with the bytes per peer, plus a
    little for each further peer;
  * from 64 KiB per peer it spreads over all channels: time goes with the bytes that leave the GPU;
  * from 1 MiB on, each further byte takes the soft maximum of two times: that of the copying
    channels, which a GPU's own copy and all peers share and which does not depend on the GPU count,
    and that of the port at a fixed share of its line rate.
Over PCIe peers are served one after another, and a link of its own joins the groups of GPUs.
All-gather, reduce-scatter and all-reduce are rings: a fixed part and equal steps, whose number grows
with the GPUs and whose time depends on the chunk, size / GPUs; never more than equal bytes sent.
"""
import numpy as np

from tools.fit import piecewise

EXPONENT = 4.0
PORT_SHARE = 0.70
US_PER_PEER = 0.075
ONE_CHANNEL_BYTES, ALL_CHANNELS_BYTES = 32 * 1024.0, 64 * 1024.0
STREAMING_BYTES = 2.0**20
LARGEST_CHAIN = 8


def sent_share(op, gpus, switch_reduces=False):
    """Bytes that leave a GPU, as a share of nccl-tests' size."""
    if op == "all-reduce":
        return 1.0 if switch_reduces else 2 * (gpus - 1) / gpus
    return (gpus - 1) / gpus


def octaves(many, curve, gpus):
    """Sizes from the smallest knot on, each twice the one before, until the bytes per peer are those
    of the largest knot among `many`."""
    high, sizes = curve[0][-1] * gpus / many, [curve[0][0]]
    while sizes[-1] < high * (1 - 1e-9):
        sizes.append(2 * sizes[-1])
    return np.array(sizes)


def further_peers(curves, gpus, sizes):
    """The time with equal bytes per peer: each further GPU adds what the last measured ones added."""
    many, curve = curves[-1]
    at_many = piecewise.evaluate(*curve, sizes * many / gpus)
    few, fewest = curves[0]
    slope = (at_many - piecewise.evaluate(*fewest, sizes * few / gpus)) / (many - few)
    return at_many + (gpus - many) * np.maximum(slope, 0)


def further_steps(op, many, gpus):
    """To how many further GPUs of a ring the further GPUs amount. Among more than a node's an all-reduce
    takes a tree: two steps for each doubling, as many as a further GPU of a ring adds."""
    if op != "all-reduce" or gpus <= LARGEST_CHAIN:
        return gpus - many
    chain = max(many, LARGEST_CHAIN)
    return chain - many + np.log2(gpus / chain)


def ring(op, links, curves, gpus, sizes):
    many, curve = curves[-1]
    few, fewest = curves[0]
    step = max((curve[1][0] - fewest[1][0]) / (many - few), 0.0)
    reduces = links.get("switch_reduces", False)
    ratio = sent_share(op, gpus, reduces) / sent_share(op, many, reduces)
    as_sent = piecewise.evaluate(*curve, sizes * ratio) + step * further_steps(op, many, gpus)
    return np.minimum(further_peers(curves, gpus, sizes), as_sent)


def crossing_us(links, gpus, size):
    """Time of `size` bytes of all-to-all over the link between two groups of GPUs: a group's bytes for
    the others, each direction. 0 where none is crossed."""
    group = links.get("group", gpus)
    return group * (gpus - group) / gpus * size / links["group_bytes_per_us"] if gpus > group else 0 * size


def start_all_to_all(links, curves, gpus, sizes):
    """The time at sizes at which the bandwidth of ports and channels does not decide yet. Over PCIe the
    link between groups takes its time from the first byte on."""
    many, curve = curves[-1]
    ratio = sent_share("all-to-all", gpus) / sent_share("all-to-all", many)
    spread = piecewise.evaluate(*curve, sizes * ratio)
    if links["kind"] == "pcie":
        as_fewer = spread if len(curves) == 1 else further_peers(curves, gpus, sizes)
        return np.maximum(as_fewer, curve[1][0] + crossing_us(links, gpus, sizes))
    single = piecewise.evaluate(*curve, sizes * many / gpus) + US_PER_PEER * (gpus - many)
    octave = np.log2(sizes / gpus / ONE_CHANNEL_BYTES)
    share = np.clip(octave / np.log2(ALL_CHANNELS_BYTES / ONE_CHANNEL_BYTES), 0, 1)
    return single ** (1 - share) * spread**share


def further_us(links, many, gpus, size, took):
    """Time of `size` more bytes among `gpus`, where they took `took` among `many`."""
    before, after = sent_share("all-to-all", many), sent_share("all-to-all", gpus)
    if links["kind"] == "pcie":
        return max(took * after / before, crossing_us(links, gpus, size))
    port = size / (PORT_SHARE * links["port_bytes_per_us"])
    channels = max(took**EXPONENT - (before * port)**EXPONENT, 0.0)
    return max((channels + (after * port)**EXPONENT)**(1 / EXPONENT), took)


def predict(op, links, curves, gpus):
    """Knots (bytes, microseconds) among `gpus` from `curves`: [(GPU count, (bytes, time_us))],
    ascending; rings need two. `links`: kind nvlink-switch with port_bytes_per_us, or pcie, with
    group and group_bytes_per_us if groups are crossed."""
    many, curve = curves[-1]
    sizes = octaves(many, curve, gpus)
    measured = piecewise.evaluate(*curve, sizes)
    if op == "all-to-all":
        times = np.maximum.accumulate(start_all_to_all(links, curves, gpus, sizes))
        for knot in range(1, len(sizes)):
            if sizes[knot] > STREAMING_BYTES:
                took = measured[knot] - measured[knot - 1]
                times[knot] = times[knot - 1] + further_us(links, many, gpus,
                                                           sizes[knot] - sizes[knot - 1], took)
    else:
        times = np.maximum.accumulate(ring(op, links, curves, gpus, sizes))
    return sizes, times
