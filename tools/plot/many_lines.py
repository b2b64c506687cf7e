"""Speeds and losses of more lines than one panel can tell apart: a panel for each value of an option."""
import axes_chart
import page
import rows
from chart_data import BadInput

X = "capacity_factor"
MOST_LINES = 12  # that have a colour each
MOST_COLUMNS = 4  # of panels that have one figure below the other
FIGURES = {"sweep": ("tokens_per_s_per_gpu", "residual_loss"), "loss": ("failed", "residual_loss", "padded")}
REST = {"sweep": "token loss: --chart loss", "loss": "failed routes and empty slots: --x capacity_factor --y failed,padded"}
ALONE = {"sweep": "tokens_per_s_per_gpu", "loss": "residual_loss"}
TITLES = {"sweep": ("speed and token loss", "speed"), "loss": ("loss and padding", "token loss")}
SIZE = page.Size(10.5, 10.0)


def _labels(table, facet=None):
    return {line.label for line in rows.lines(table, X, None, facet)}


def _options(table):
    """The options beside the router that tell the lines apart."""
    return [name for name in rows.names_of(table, X, None) if name not in ("router", rows.FILE)]


def facet_of(table):
    """The option with the most values of which each panel has few enough lines; None where none is."""
    found = {}
    for name in _options(table):
        values = {row[name] for row in table.rows}
        if "" not in values and len(values) <= axes_chart.MOST_PANELS and len(_labels(table, name)) <= MOST_LINES:
            found[name] = len(values)
    return max(found, key=found.get, default=None)


def _is_for(table):
    """Whether the rows make lines over capacity factors that one panel cannot hold. It can where only routers differ: each
    has its own look."""
    if not {X, "router"} <= set(table.known()) or not any(row[X] for row in table.rows):
        return False
    try:
        return len(_labels(table)) > MOST_LINES and bool(_options(table))
    except BadInput:  # two rows in one place: said by the chart of one panel
        return False


def draw(kind, path, title, fits_only, where, measured):
    """The figure of a chart of `kind`, "sweep" or "loss"; None where one panel can hold its lines."""
    table = rows.read([path], where, fits_only)
    if not _is_for(table):
        return None
    facet, name = facet_of(table), _options(table)[0]
    if facet is None or measured:
        raise BadInput(f"{path}: {len(_labels(table))} lines, and more than {MOST_LINES} cannot be distinguished"
                       + (" beside measured points" if measured else "") + ": choose some with --where, such as "
                       f"--where '{name}={table.rows[0][name]}'")
    is_wide = len(rows.ordered(table, facet)) > MOST_COLUMNS
    wanted = [ALONE[kind]] if is_wide else FIGURES[kind]
    wanted = [rows.token_loss(table) if figure == rows.TOKEN_LOSS else figure for figure in wanted]
    figures = [figure for figure in wanted if figure in table.known() and any(row[figure] for row in table.rows)]
    title = title or page.heading(table, f"{TITLES[kind][is_wide]} by capacity factor")
    return axes_chart.draw(table, X, figures or [ALONE[kind]], None, facet, SIZE, title, [REST[kind]] if is_wide else [])
