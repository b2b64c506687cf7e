"""The chart of the quality experiment: what dropped tokens cost, and the claims."""
import os
import sys

import matplotlib

matplotlib.use("Agg")
import numpy as np  # noqa: E402
from matplotlib import pyplot  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402
from matplotlib.transforms import blended_transform_factory  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "plot"))

import look  # noqa: E402
from claims import EXPECTED, MARGIN, Term, claims, interval, reference, verdict  # noqa: E402
from experiment import CAPACITY_FACTORS, SUFFIXES  # noqa: E402

VERDICTS = {"holds": "#009E73", "does not hold": "#D55E00", "cannot tell": look.GREY}
FROM = {"": "from scratch", ", upcycled": "upcycled"}
ROUTERS = [base + suffix for base in ("top1", "top2") for suffix in SUFFIXES]


def _draw_factors(axes, results, base, kind, styles):
    for suffix in SUFFIXES:
        terms = [Term(base + kind, base + suffix, factor) for factor in CAPACITY_FACTORS]
        figures = np.array([interval(results.excess(term, reference(base, kind)))
                            for term in terms])
        factors = [float(factor) for factor in CAPACITY_FACTORS]
        axes.errorbar(factors, figures[:, 0], yerr=figures[:, 1], linewidth=1.4, elinewidth=0.9,
                      capsize=2, **styles[base + suffix])
    axes.axhline(0, color="#000000", linewidth=0.8)
    axes.set_title(f"trained as {base} at {base[3:]}, {FROM[kind]}", loc="left", fontsize=10)
    axes.set_xlabel("capacity factor at evaluation")


def _draw_lost(axes, results, kind, styles):
    for base in ("top1", "top2"):
        for suffix in SUFFIXES:
            terms = [Term(base + kind, base + suffix, factor) for factor in CAPACITY_FACTORS]
            axes.plot([100 * np.mean([results.lost[term][seed] for seed in results.seeds])
                       for term in terms],
                      [results.excess(term, reference(base, kind)).mean() for term in terms],
                      **{**styles[base + suffix], "linestyle": "none"})
    axes.axhline(0, color="#000000", linewidth=0.8)
    axes.set_title(f"both k, all capacity factors, {FROM[kind]}", loc="left", fontsize=10)
    axes.set_xlabel("token loss that moesim reports (residual_loss), %")


def _draw_claims(figure, axes, results):
    rows = claims()
    for place, claim in enumerate(rows):
        mean, half = interval(results.differences(claim))
        axes.errorbar([mean], [place], xerr=[half], marker="o", markersize=5, capsize=3,
                      color=VERDICTS[verdict(mean, half, claim.expected)])
        if place == 0 or rows[place - 1].number != claim.number:
            axes.axhline(place - 0.5, color="#DDDDDD", linewidth=0.8)
            axes.text(0.015, place, f"{claim.number}  {claim.title}", fontsize=9, va="center",
                      transform=blended_transform_factory(figure.transFigure, axes.transData))
    axes.set_xscale("symlog", linthresh=0.02, linscale=0.7)
    ticks = (-0.5, -0.2, -0.1, -0.05, -0.02, -0.01, 0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8.5)
    axes.axvspan(-MARGIN, MARGIN, color="#EEEEEE", zorder=0)
    axes.axvline(0, color="#000000", linewidth=0.8)
    axes.set_yticks(range(len(rows)))
    axes.set_yticklabels([f"{claim.what}  ({EXPECTED[claim.expected]})" for claim in rows],
                         fontsize=8.5)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("difference in held-out loss, nats per byte, 95 % interval over seeds (in "
                    "brackets: what the claim expects)")
    axes.xaxis.set_label_coords(0.36, -0.04)
    axes.legend(handles=[*(Line2D([], [], color=colour, marker="o", markersize=5, label=name)
                           for name, colour in VERDICTS.items()),
                         Patch(color="#EEEEEE", label="hardly matters")],
                loc="upper right", bbox_to_anchor=(1, 1.05), ncol=4, borderaxespad=0)


def draw(results):
    styles = dict(zip(ROUTERS, look.router_styles(ROUTERS)))
    with matplotlib.rc_context(look.RC):
        figure = pyplot.figure(figsize=(13.5, 17.5))
        top = figure.add_gridspec(2, 3, left=0.075, right=0.985, top=0.94, bottom=0.555,
                                  wspace=0.2, hspace=0.27)
        for row, kind in enumerate(FROM):
            panels = [figure.add_subplot(top[row, 0])]
            panels += [figure.add_subplot(top[row, at], sharey=panels[0]) for at in (1, 2)]
            _draw_factors(panels[0], results, "top1", kind, styles)
            _draw_factors(panels[1], results, "top2", kind, styles)
            _draw_lost(panels[2], results, kind, styles)
            panels[0].set_ylabel("held-out loss above that of the same\nmodel with nothing dropped, "
                                 "nats per byte")
        figure.legend(handles=[Line2D([], [], linewidth=1.4, label=router, **styles[router])
                               for router in ROUTERS], loc="upper left", ncol=8, fontsize=9,
                      bbox_to_anchor=(0.065, 0.53), handlelength=3.4)
        _draw_claims(figure, figure.add_subplot(figure.add_gridspec(
            1, 1, left=0.49, right=0.985, top=0.483, bottom=0.036)[0]), results)
        figure.text(0.015, 0.99, "What lost tokens cost a tiny MoE language model, and which "
                    "claims of Zeng et al. 2024 hold for it", fontsize=13, fontweight="bold",
                    va="top")
        figure.text(0.015, 0.974, f"byte-level, 2 MoE layers of 8 experts, 128 tokens per GPU, "
                    f"{len(results.seeds)} seeds; bars: 95 % intervals of differences within a "
                    "seed", fontsize=9.5, color="#333333", va="top")
    return figure
