"""Which lines of a chart lie below others, so that its legend can say so."""
from dataclasses import dataclass

MOST_LINES = 12  # with more lines the legend has no room for such notes
SAME = 0.003  # of a figure, and of the height of a panel: about the width of a line


@dataclass(frozen=True)
class Panel:
    """Lines in the order in which they are drawn, by label: {place on the axis: figure}. Panels of one `name` say the
    same of several rows. Limits of the axes are final."""
    name: str
    axes: object
    lines: dict


def _height(axes, y):
    """Where a figure lies, as a share of the panel's height."""
    return (axes.transData + axes.transAxes.inverted()).transform((axes.get_xlim()[0], y))[1]


def _lies_below(axes, one, other):
    return bool(one) and one.keys() <= other.keys() and all(
        abs(y - other[x]) <= SAME * abs(y) and abs(_height(axes, y) - _height(axes, other[x])) <= SAME
        for x, y in one.items())


def _above(panels):
    """{label: the line drawn last of those that lie on it in all panels that have it}."""
    found = {}
    for panel in panels:
        labels = list(panel.lines)
        for at, label in enumerate(labels):
            those = [other for other in labels[at + 1:] if _lies_below(panel.axes, panel.lines[label], panel.lines[other])]
            if panel.lines[label]:
                found[label] = [other for other in found.get(label, those) if other in those]
    return {label: those[-1] for label, those in found.items() if those}


def notes(panels):
    """{label: " (step time: as top2)"} of lines that are not seen for another one's."""
    if len({label for panel in panels for label in panel.lines}) > MOST_LINES:
        return {}
    found = {}
    for name in dict.fromkeys(panel.name for panel in panels):
        for label, other in _above([panel for panel in panels if panel.name == name]).items():
            found.setdefault(label, {}).setdefault(other, []).append(name)
    return {label: f" ({'; '.join(', '.join(names) + f': as {other}' for other, names in others.items())})"
            for label, others in found.items()}
