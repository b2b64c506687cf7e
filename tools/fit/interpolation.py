"""Functions on grids of knots: the weights of their interpolation, how much they bend, and the values of
terms as documents carry them."""
import numpy as np
from scipy import sparse


def hats(x, knots):
    """([points, 2] indices, [points, 2] weights) of linear interpolation, constant beyond."""
    knots = np.asarray(knots, float)
    x = np.clip(np.asarray(x, float), knots[0], knots[-1])
    low = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
    share = (x - knots[low]) / (knots[low + 1] - knots[low])
    return np.stack([low, low + 1], 1), np.stack([1 - share, share], 1)


def corners(columns, axes):
    """([points, corners] indices, [points, corners] weights) of multilinear interpolation, the last
    axis fastest; how many knots there are."""
    index, weight = np.zeros((len(columns[0]), 1), int), np.ones((len(columns[0]), 1))
    for x, knots in zip(columns, axes):
        at, share = hats(x, knots)
        index = (index[:, :, None] * len(knots) + at[:, None, :]).reshape(len(x), -1)
        weight = (weight[:, :, None] * share[:, None, :]).reshape(len(x), -1)
    return index, weight, int(np.prod([len(axis) for axis in axes]))


def product(columns, axes):
    """[points, all knots] weights of multilinear interpolation, sparse."""
    index, weight, knots = corners(columns, axes)
    point = np.repeat(np.arange(len(index)), index.shape[1])
    return sparse.csr_matrix((weight.ravel(), (point, index.ravel())), (len(index), knots))


def dense_product(columns, axes):
    """As `product`, dense."""
    index, weight, knots = corners(columns, axes)
    result = np.zeros((len(index), knots))
    np.put_along_axis(result, index, weight, axis=1)
    return result


def bends(knots):
    """[knots - 2, knots] second differences: how much a piecewise linear function bends."""
    matrix = np.zeros((len(knots) - 2, len(knots)))
    for row in range(len(knots) - 2):
        left, right = np.diff(knots[row:row + 3])
        matrix[row, row:row + 3] = 1 / left, -1 / left - 1 / right, 1 / right
    return matrix


def with_values(terms, values):
    """Correction terms with the values at their knots, which follow one another in `values`."""
    ends = np.cumsum([len(term["x_knots"]) * len(term["y_knots"]) for term in terms])
    return [{**term, "values": part.tolist()}
            for term, part in zip(terms, np.split(values, ends[:-1]))]
