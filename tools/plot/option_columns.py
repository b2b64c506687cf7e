"""Which columns of a result are scenario options: read from what `moesim options --format json` prints.

Looked for in this order: the file of `plot.py --options` (`moesim plot` hands one over) or of the
variable MOESIM_OPTIONS, the program that MOESIM_BIN names, the moesim of the same installation or
build, the moesim of the PATH.
"""
import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path


VARIABLE = "MOESIM_OPTIONS"


def words(column):
    """"expert parallel", "ZeRO": how a chart names a column."""
    return {"zero": "ZeRO", "gpus": "GPUs", "tokens_per_gpu": "tokens per GPU"}.get(column, column.replace("_", " "))


# Options with a default in words, or "auto", that are nevertheless chosen rather than derived.
CHOSEN = ("router", "capacity_factor", "model", "network")


class NoOptions(Exception):
    """The list of scenario options cannot be had; the message says what to do."""


@dataclass(frozen=True)
class OptionColumns:
    """Columns by what they are, in the order of the document."""
    options: tuple  #: of scenarios, and behind them those that moesim train alone has
    by_router: frozenset  #: options whose default a router sets
    results: frozenset  #: figures, parts and all other columns of simulate and sweep that are no options
    parts: tuple = ()  #: of the step of simulate and sweep, which they sum to
    units: dict = field(default_factory=dict)  #: {column: "ms"} of columns that have one; "share": 0..1
    #: Options whose default follows from others, in words ("the profile's usual node") or as "auto": rows have what was chosen.
    derived: frozenset = frozenset()
    training: frozenset = frozenset()  #: options that moesim train alone has
    training_parts: tuple = ()  #: of its step, which they sum to
    cluster_gpus: dict = field(default_factory=dict)  #: {cluster: GPU} of shipped ones that name their GPUs
    profile_gpus: dict = field(default_factory=dict)  #: {profile: GPU} of shipped ones
    dispatcher: str = ""  #: what carries rows to experts where the cell of that option is blank

    def chosen(self):
        """The options without those that follow from others."""
        return [name for name in self.options if name in CHOSEN or name not in self.derived]


def parse(text, source):
    """The columns of a document; NoOptions where it is none."""
    try:
        return _columns(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NoOptions(f"{source}: this is not the document of 'moesim options --format json'") from None


def _columns(document):
    declared = {option["column"]: option for option in document["options"] if option.get("column")}
    training = {option["column"]: option["default"] for option in document.get("training_options", [])
                if option["column"] not in declared}
    defaults = {**training, **{name: option.get("default", "") for name, option in declared.items()}}
    columns = document["columns"]
    with_unit = [column for column in (*document.get("training_columns", []), *columns) if column.get("unit")]
    return OptionColumns(
        options=(*declared, *training),
        by_router=frozenset(name for name, option in declared.items() if option.get("default_from_router")),
        results=frozenset(column["name"] for column in columns) - frozenset(defaults),
        parts=tuple(column["name"] for column in columns if column.get("role") == "part"),
        units={column["name"]: column["unit"] for column in with_unit},
        derived=frozenset(name for name, default in defaults.items() if " " in default or default == "auto"),
        training=frozenset(training),
        training_parts=tuple(document.get("training_parts", [])),
        cluster_gpus=document.get("cluster_gpus", {}),
        profile_gpus=document.get("profile_gpus", {}),
        dispatcher=defaults.get("dispatcher", ""))


def _program():
    """The program that knows the options, if there is one."""
    if os.environ.get("MOESIM_BIN"):
        return os.environ["MOESIM_BIN"]
    here = Path(__file__).resolve()
    for near in (here.parents[3] / "bin" / "moesim",  # share/moesim/plot of an installation
                 here.parents[2] / "build" / "release" / "tools" / "moesim"):  # tools/plot of a clone
        if near.is_file():
            return str(near)
    return shutil.which("moesim")


def _is_path(name):
    return "/" in name or name.endswith(".json")


def _document(path):
    """What a file has at its top; {} where it cannot be read here."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _gpu_of(cluster):
    """What a cluster's document calls its GPUs; "" where it names none, or is not known here."""
    if _is_path(cluster):
        return _document(cluster).get("gpu", "")
    try:
        return load().cluster_gpus.get(cluster, "")
    except NoOptions:
        return ""


def _device_of(profile):
    """The GPU of a profile, of software on it that of the hardware; "" where it is not known here."""
    if not _is_path(profile):
        try:
            return load().profile_gpus.get(profile, "")
        except NoOptions:
            return ""
    document = _document(profile)
    devices = document.get("devices")
    if isinstance(devices, list) and devices and isinstance(devices[0], dict):
        return devices[0].get("name", "")
    base = document.get("profile", "")
    return _device_of(base) if base and base != profile else ""


def gpu_title(profile, cluster, typed=None):
    """As the texts of moesim name GPUs: "h100-sxm", or "NVIDIA H800 with kernels of h100-sxm" where the profile is of
    another GPU than those of the cluster. `profile`: as it is shown; `typed`: as a row has it, if that differs."""
    typed = profile if typed is None else typed
    gpu = _gpu_of(cluster)
    base = _document(typed).get("profile", "") if _is_path(typed) else ""
    if base and not _is_path(base):
        profile = f"{base} ({profile})"  # of software on it
    if not gpu or gpu == _device_of(typed):
        return profile
    return f"{gpu} with kernels of {profile}"


def load():
    """The option columns; NoOptions says what is missing."""
    path = os.environ.get(VARIABLE)
    if path:
        try:
            return parse(Path(path).read_text(encoding="utf-8"), path)
        except OSError as error:
            raise NoOptions(f"{path}: cannot read the list of options: {error.strerror}") from None
    program = _program()
    if program is None:
        raise NoOptions("the plotter does not know the scenario options, and found no moesim to ask: run "
                        "'moesim plot', or set MOESIM_BIN to the program, or MOESIM_OPTIONS to a file "
                        "with the output of 'moesim options --format json'")
    try:
        answer = subprocess.run([program, "options", "--format", "json"], capture_output=True,
                                text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoOptions(f"{program}: cannot run it for its list of options: {error}") from None
    if answer.returncode != 0:
        raise NoOptions(f"{program}: 'moesim options' failed: {answer.stderr.strip()}")
    return parse(answer.stdout, program)
