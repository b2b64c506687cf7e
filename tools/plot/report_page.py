"""A sweep as one interactive page: lines over any column, values under the pointer, the table, what it
is based on. The page needs no network: Plotly lies inside it."""
import html
import json

import option_columns
import page
import rows
import stopped
from chart_data import BadInput, MissingPackage, band_columns, partial_notes, training_words

MOST_ROWS = 20000
SPEED = "tokens_per_s_per_gpu"  # how far measured ones are off is said above the chart, whichever figure it shows
# Numbers, but what is assumed of a run, or places in a list.
NO_FIGURES = ("band_level", "memory_gib_by_rank", "memory_limit_gib", "train_tokens", "gpu_hour_price", "rank", "twins")
# What the bands of moesim train are based on (sim/uncertainty/published/step_errors.hpp).
BASES = {"own": "your own steps, of this model", "own-models": "your own steps, of other models",
         "model": "steps of this model with this software on this machine",
         "machine": "steps of other models with this software on this machine",
         "software": "steps with this software on other machines", "nothing": "steps with other software"}


def plotly_source():
    """Plotly's script, from the Python package."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingPackage("an HTML report contains the library Plotly, and this Python has no package of it: "
                             "pip install plotly, or set MOESIM_PYTHON to an interpreter that has it") from None
    return get_plotlyjs()


def _cell(text):
    return float(text) if text and rows.is_number(text) else text


def data_of(table, x, y, group):
    """What the script of the page draws: columns, rows, the first choice of axes."""
    names = [name for name in table.known()
             if any(row[name] for row in table.rows) and name not in ("status", "reason")]
    differing = table.differing()
    figures = [name for name in names if name not in (*table.options(), *NO_FIGURES)
               and all(rows.is_number(row[name]) for row in table.rows if row[name])]
    first_x = x or next((name for name in ("capacity_factor", "gpus", *differing) if name in differing), "")
    if not first_x:
        raise BadInput(f"{table.files[0]}: its rows differ in no option, so there is no axis to draw over")
    for name, flag in ((first_x, "x"), (y, "y")):
        table.require(name, flag)
    lines = group or rows.needed(table, [first_x], [name for name in differing if name != first_x])
    bands = {name: power for name, power in rows.BANDED.items() if name in figures}
    routers = {"router": "_router"}  # with their k where that is not the others'
    return {"columns": names, "rows": [[_cell(row[routers.get(name, name)]) for name in names] for row in table.rows],
            "options": differing, "figures": figures, "x": first_x, "y": y, "group": lines,
            "names": {name: rows.axis_name(table, name) for name in names},
            "own_bands": {name: rows.own_band(name) for name in figures
                          if name not in rows.BANDED and set(rows.own_band(name)) <= set(names)},
            "scale": {name: rows.scale_of(table, name) for name in names}, "bands": bands,
            "band": band_columns(table.rows[0]) if _has_error_bars(table) else None,
            "ends": {name: [f"{name}_low", f"{name}_high"] for name in figures
                     if {f"{name}_low", f"{name}_high"} <= set(names)}}


def _has_error_bars(table):
    return band_columns(table.rows[0])[0] in table.known()


def _levels(table):
    """"80 %" of the bands of moesim train; "" of other rows."""
    levels = sorted({float(row["band_level"]) for row in table.rows if row.get("band_level")})
    return " or ".join(f"{100 * level:g} %" for level in levels)


def _notes(table):
    """What the page says below its chart of the bands and of what does not compare."""
    notes = [f"{note}." for note in [*stopped.notes(table.rows), *partial_notes(table.files)]]
    if _has_error_bars(table):
        same = "_same_" in band_columns(table.rows[0])[0]
        alone = ", software and machine the same, of each row by itself: sweep --baseline compares rows."
        notes.append("Error bars: p05 to p95" + (alone if same else "."))
    elif _levels(table):
        notes.append("No error bars: most of the error is one factor of all rows together. A mark pointed at says where a "
                     f"measured step lies with {_levels(table)} chance (columns _low and _high).")
    if any(row.get(f"{rows.TOKEN_LOSS}_p05") for row in table.rows):
        notes.append("Error bars of token loss: p05 to p95 of one step.")
    if any(row["_router"] != row.get("router", "") for row in table.rows):
        notes.append("(k = ...): these routers choose another number of experts for a token than the others; their token "
                     "loss, a share of what is chosen, does not compare with that of the others.")
    return " ".join(notes)


def _provenance(row):
    """What a row is based on: of moesim train, which has no such column, the curves, the links and the band."""
    if row.get("provenance") or "band_basis" not in row:
        return row.get("provenance")
    text = f"curves of {row['profile']}; links of {row['cluster']}"
    if row["band_basis"]:
        text += f"; band: {BASES.get(row['band_basis'], row['band_basis'])}"
    return text + (f"; wide most of all because: {row['widest_term']}" if row.get("widest_term") else "")


def _basis(table):
    found = {}
    for row in table.rows:
        if _provenance(row):
            found[_provenance(row)] = found.get(_provenance(row), 0) + 1
    return "".join(f"<li>{html.escape(text)} <span class=n>({count} of {len(table.rows)} rows)</span></li>"
                   for text, count in sorted(found.items(), key=lambda item: -item[1]))


def text(table, x, y, group, title):
    """The page."""
    if len(table.rows) > MOST_ROWS:
        raise BadInput(f"{len(table.rows)} rows, and a page holds at most {MOST_ROWS}: choose with --where")
    data = json.dumps(data_of(table, x, y, group)).replace("</", "<\\/")
    name = title or page.heading(table, "training steps" if training_words(table.shared()) else "sweep")
    shared = ", ".join(f"{option_columns.words(key)} {value}" for key, value in table.shared().items())
    return PAGE.format(title=html.escape(name), under=html.escape(page.subtitle(table, rows.run_notes(table, table.known()), figures=[SPEED])),
                       shared=html.escape(shared), notes=html.escape(_notes(table)), basis=_basis(table), data=data,
                       plotly=plotly_source(), script=SCRIPT)


SCRIPT = """
const D = JSON.parse(document.getElementById('data').textContent);
const at = Object.fromEntries(D.columns.map((name, index) => [name, index]));
const get = id => document.getElementById(id);
function fill(id, names, chosen) {
  for (const name of names) {
    const option = document.createElement('option');
    option.value = name; option.textContent = D.names[name] || name;
    option.selected = Array.isArray(chosen) ? chosen.includes(name) : name === chosen;
    get(id).appendChild(option);
  }
}
fill('x', [...new Set([D.x, ...D.options, ...D.figures])], D.x);
fill('y', D.figures, D.y);
fill('group', D.options, D.group);
const dashes = ['solid', 'dash', 'dashdot', 'dot'];
const marks = ['circle', 'square', 'triangle-up', 'diamond', 'triangle-down', 'cross', 'x'];
const colours = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#56B4E9', '#E69F00', '#000000'];
const short = value => typeof value === 'number' ? value.toLocaleString('en', {maximumSignificantDigits: 6}) : value;
// Plotly takes tags and entities of the texts that it draws as HTML.
const plain = value => typeof value === 'string' ? value.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;') : value;
function draw() {
  const x = get('x').value, y = get('y').value;
  const group = [...get('group').selectedOptions].map(o => o.value).filter(name => name !== x);
  const only = get('fits').checked;
  const lines = new Map();
  for (const row of D.rows) {
    if (row[at[x]] === '' || row[at[y]] === '') continue;
    if (only && row[at.fits_memory] === 'false') continue;
    const label = group.map(name => row[at[name]] === '' ? '' :
      (name === 'router' ? '' : D.names[name].split(',')[0] + ' ') + row[at[name]]).filter(Boolean).join(', ')
      || group.map(name => 'no ' + D.names[name].split(/, | \\(/)[0]).join(', ') || 'all rows';
    if (!lines.has(label)) lines.set(label, []);
    lines.get(label).push(row);
  }
  const power = D.bands[y], traces = [];
  let index = 0;
  for (const [label, members] of lines) {
    const options = D.options.filter(name => name !== x);
    members.sort((a, b) => a[at[x]] < b[at[x]] ? -1 : a[at[x]] > b[at[x]] ? 1 : 0);
    // Rows that lie at one x are points of their own, not a line.
    const single = new Set(members.map(row => row[at[x]])).size === members.length;
    const numbers = members.every(row => typeof row[at[x]] === 'number');
    const value = row => D.scale[y] * row[at[y]];
    const ends = members.map(row => {
      const own = (D.own_bands[y] || []).map(name => D.scale[y] * row[at[name]]);
      // The band is that of all of the residual loss.
      if (y === 'counted_loss' && row[at[y]] !== row[at.residual_loss]) return [0, 0];
      if (own.length && D.own_bands[y].every(name => row[at[name]] !== '')) return [own[1] - value(row), value(row) - own[0]];
      if (!D.band) return [0, 0];
      const step = row[at.step_ms], low = row[at[D.band[0]]], high = row[at[D.band[1]]];
      if (!power || !step || !low || !high) return [0, 0];
      const both = [value(row) * (low / step) ** power, value(row) * (high / step) ** power].sort((a, b) => a - b);
      return [both[1] - value(row), value(row) - both[0]];
    });
    const likely = row => {
      const [low, high] = (D.ends[y] || []).map(name => row[at[name]]);
      if (typeof low !== 'number' || typeof high !== 'number') return '';
      return '<br>if measured, ' + short(100 * row[at.band_level]) + ' %: ' + short(low) + ' to ' + short(high);
    };
    const colour = colours[index % 7], unfit = row => row[at.fits_memory] === 'false';
    traces.push({
      name: plain(label), type: 'scatter', mode: single && numbers ? 'lines+markers' : 'markers',
      x: members.map(row => typeof row[at[x]] === 'number' ? D.scale[x] * row[at[x]] : plain(row[at[x]])),
      y: members.map(value),
      error_y: {type: 'data', array: ends.map(e => e[0]), arrayminus: ends.map(e => e[1]),
                visible: ends.some(e => e[0] + e[1] > 0), thickness: 1, width: 3, color: colour},
      line: {color: colour, dash: dashes[Math.floor(index / 7) % 4], width: 1.6},
      marker: {color: members.map(row => unfit(row) ? '#ffffff' : colour), size: 8,
               symbol: marks[(index + Math.floor(index / 7)) % 7], line: {color: colour, width: 1.4},
               opacity: members.map(row => unfit(row) ? 0.45 : 1)},
      text: members.map(row => options.filter(name => row[at[name]] !== '').map(name =>
        name.replace(/_/g, ' ') + ' ' + plain(row[at[name]])).join('<br>') + likely(row) + (unfit(row) ? '<br><b>does not fit in memory</b>' : '')),
      hovertemplate: '%{y:.5~g}<br>%{text}<extra></extra>'
    });
    index += 1;
  }
  Plotly.react('chart', traces, {
    xaxis: {title: {text: plain(D.names[x])}, automargin: true}, yaxis: {title: {text: plain(D.names[y])}, automargin: true, rangemode: get('zero').checked ? 'tozero' : 'normal'},
    legend: {orientation: 'h', y: -0.2}, margin: {t: 10, r: 10}, hovermode: 'closest', template: 'none'
  }, {responsive: true, displaylogo: false});
  document.body.dataset.lines = lines.size;
}
for (const id of ['x', 'y', 'group', 'fits', 'zero']) get(id).addEventListener('change', draw);
let sorted = null, down = false;
function table() {
  const shown = D.columns.filter(name => D.options.includes(name) || D.figures.includes(name) || name === 'fits_memory');
  const rows = [...D.rows];
  if (sorted) rows.sort((a, b) => (a[at[sorted]] < b[at[sorted]] ? -1 : a[at[sorted]] > b[at[sorted]] ? 1 : 0) * (down ? -1 : 1));
  const head = document.createElement('tr');
  for (const name of shown) {
    const cell = document.createElement('th');
    cell.textContent = name + (name === sorted ? (down ? ' \\u25be' : ' \\u25b4') : '');
    cell.onclick = () => { down = name === sorted && !down; sorted = name; table(); };
    head.appendChild(cell);
  }
  const body = rows.map(row => {
    const line = document.createElement('tr');
    if (row[at.fits_memory] === 'false') line.className = 'unfit';
    for (const name of shown) { const cell = document.createElement('td'); cell.textContent = short(row[at[name]]); line.appendChild(cell); }
    return line;
  });
  get('rows').replaceChildren(head, ...body);
}
draw();
table();
"""

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 15px/1.4 sans-serif; margin: 1.2em auto; max-width: 1200px; padding: 0 1em; color: #111 }}
h1 {{ font-size: 1.3em; margin: 0 }} h2 {{ font-size: 1.05em; margin: 1.4em 0 .3em }}
p, li {{ color: #333; font-size: .9em }} .n {{ color: #777 }}
form {{ display: flex; flex-wrap: wrap; gap: 1em; align-items: end; margin: .8em 0 }}
label {{ font-size: .85em }} select {{ display: block; font-size: 1em; max-width: 20em }}
#chart {{ height: 560px }} #scroll {{ overflow: auto; max-height: 480px; border: 1px solid #ddd }}
table {{ border-collapse: collapse; font-size: .8em }} th {{ position: sticky; top: 0; background: #eee; cursor: pointer }}
td, th {{ padding: .15em .6em; text-align: right; white-space: nowrap }} tr.unfit td {{ color: #999 }}
</style></head><body>
<h1>{title}</h1><p>{under}</p>
<form onsubmit="return false">
<label>over <select id="x"></select></label>
<label>figure <select id="y"></select></label>
<label>a line for each <select id="group" multiple size="3"></select></label>
<label><input type="checkbox" id="fits"> only what fits in memory</label>
<label><input type="checkbox" id="zero"> from zero</label>
</form>
<div id="chart"></div>
<p>Click a line in the legend to switch it off, twice to see it alone. White, pale: does not fit in the memory of a GPU; grey in the table. {notes}</p>
<h2>Rows</h2><div id="scroll"><table id="rows"></table></div>
<h2>Based on</h2><ul>{basis}</ul>
<h2>The same in all rows</h2><p>{shared}</p>
<script type="application/json" id="data">{data}</script>
<script>{plotly}</script>
<script>{script}</script>
</body></html>
"""
