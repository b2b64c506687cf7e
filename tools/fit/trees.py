"""Boosted regression trees of what a physical model leaves over, in log time
(sim/profile/kernels/correction_trees.hpp says how a document carries them). Fitting needs LightGBM."""
import numpy as np

LEAST_ROWS = 20  # points of a leaf
# Few and large trees are as good as more and smaller ones, with fewer figures.
LEAVES = (15, 127)  # of a tree, at least and at most
TREES = 25          # at most
POINTS_PER_LEAF = 10  # of all trees together, at least
RATE = 0.3         # what a tree takes up of what is left, of TREES
RATE_OF_FEW = 0.4  # of fewer, which have to take more each
HUBER = 0.05       # the error in log time above which the Huber loss of fit_medians is linear
SEED = 1


def size(points):
    """(trees, leaves of one, share that each takes up) for so many points."""
    leaves = int(np.clip(points // (TREES * POINTS_PER_LEAF), *LEAVES))
    trees = int(np.clip(points // (POINTS_PER_LEAF * leaves), 1, TREES))
    return trees, leaves, RATE if trees == TREES else RATE_OF_FEW


def flatten(node, split, figure, values=None):
    """A tree in pre-order: of a fork its input and threshold, of a leaf -1 and its value, or that
    of `values` at the leaf's number."""
    if "leaf_value" in node:
        split.append(-1)
        value = node["leaf_value"] if values is None else values[node.get("leaf_index", 0)]
        figure.append(round(float(value), 5))
        return
    split.append(int(node["split_feature"]))
    figure.append(float(f"{node['threshold']:.9g}"))
    flatten(node["left_child"], split, figure, values)
    flatten(node["right_child"], split, figure, values)


def settings_of(leaves, rate, **more):
    return {"num_leaves": leaves, "learning_rate": rate, "min_data_in_leaf": LEAST_ROWS,
            "seed": SEED, "deterministic": True, "force_row_wise": True, "num_threads": 1,
            "verbose": -1, **more}


def weighted_median(values, weight):
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    return values[order][np.searchsorted(reached, reached[-1] / 2)]


def fit(inputs, errors, size, weight=None):
    """Trees of that `size` for the weighted absolute error of [points, inputs]:
    ([nodes] inputs, [nodes] figures)."""
    import lightgbm  # PyPI; only fits need it

    count, leaves, rate = size
    data = lightgbm.Dataset(inputs, errors, weight=weight, params={"verbose": -1})
    settings = settings_of(leaves, rate, objective="l1")
    split, figure = [], []
    for tree in lightgbm.train(settings, data, count).dump_model()["tree_info"]:
        flatten(tree["tree_structure"], split, figure)
    return split, figure


def fit_medians(inputs, errors, size, weight):
    """As `fit`, but forks lower the Huber loss, which sees how far points lie apart, not only on
    which side they lie. The leaves are weighted medians all the same."""
    import lightgbm  # PyPI; only fits need it

    count, leaves, rate = size
    data = lightgbm.Dataset(inputs, errors, weight=weight, params={"verbose": -1})
    settings = settings_of(leaves, 1.0, objective="huber", alpha=HUBER, boost_from_average=False)
    left, split, figure = np.array(errors, float), [], []
    for _ in range(count):
        data.set_label(left)
        booster = lightgbm.Booster(settings, data)
        booster.update()
        leaf = booster.predict(inputs, pred_leaf=True).ravel().astype(int)
        values = {each: rate * weighted_median(left[leaf == each], weight[leaf == each])
                  for each in np.unique(leaf)}
        left -= np.array([values[each] for each in leaf])
        flatten(booster.dump_model()["tree_info"][0]["tree_structure"], split, figure, values)
    return split, figure


def described(inputs, trees):
    """Trees as a document carries them; `trees` is what fit returns."""
    split, figure = trees
    return {"inputs": inputs, "split": split, "figure": figure}


def evaluate(trees, inputs):
    """The sum of all trees at [points, inputs]; `trees` is what fit returns."""
    split, figure = trees
    total, at = np.zeros(len(inputs)), 0

    def descend(at, rows):
        """Adds the values of the subtree that starts at `at`; returns where it ends."""
        if split[at] < 0:
            total[rows] += figure[at]
            return at + 1
        less = inputs[rows, split[at]] <= figure[at]
        return descend(descend(at + 1, rows[less]), rows[~less])

    while at < len(split):
        at = descend(at, np.arange(len(inputs)))
    return total
