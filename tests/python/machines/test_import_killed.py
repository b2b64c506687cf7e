"""An import that is killed while it replaces a trace leaves the old one or the new one, never parts of both."""

import json
import shutil

import numpy as np
import pytest
from command_line import expect_error, moesim, needs_binary, succeed, trace_document
from preloaded import preloaded

pytestmark = needs_binary

# Ends the process at the call KILLED_AT of those that give a file its name or take it away.
KILLED = """
static void count(void) {
  static int calls;
  const char* at = getenv("KILLED_AT");
  if (at && ++calls == atoi(at)) _exit(9);
}
int rename(const char* from, const char* to) {
  count();
  return ((int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename"))(from, to);
}
int linkat(int folder, const char* from, int other, const char* to, int flags) {
  count();
  return ((int (*)(int, const char*, int, const char*, int))dlsym(RTLD_NEXT, "linkat"))(folder, from, other, to, flags);
}
int remove(const char* path) {
  count();
  return ((int (*)(const char*))dlsym(RTLD_NEXT, "remove"))(path);
}
"""


def log(path, chosen):
    """A route log of [token, choice]."""
    records = [{"type": "route", "layer": 0, "token_idx": token, "topk_ids": experts, "topk_weights": [0.5, 0.25]}
               for token, experts in enumerate(chosen.tolist())]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return (path, "--experts", 8)


def logits(path, chosen):
    values = np.zeros((len(chosen), 8), np.float32)
    np.put_along_axis(values, chosen, 1, axis=-1)
    np.save(path, values)
    return (path, "--top-k", 2)


def arrays(folder):
    """What the document of a trace names: its name, and the values of its arrays."""
    document = trace_document(folder)
    succeed("route", "--routing", f"trace:{folder}", "--router", "topk", "--priority", "position", "--gpus", 1)
    named = [document[key] for key in ("array", "probabilities") if key in document]
    return document["name"], [np.load(folder / name).tolist() for name in named]


@pytest.mark.parametrize(("write", "name"), [(log, "routes.jsonl"), (logits, "array.npy")])
def test_a_trace_that_is_replaced_is_the_old_one_or_the_new_one(tmp_path, write, name):
    environment = preloaded(tmp_path, KILLED)
    chosen = np.array([[0, 1], [2, 3], [4, 5], [6, 7]])
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    succeed("import", *write(tmp_path / "first" / name, chosen), "--name", "first", "--out", tmp_path / "old")
    import_second = ("import", *write(tmp_path / "second" / name, chosen[::-1]), "--name", "second", "--out")
    succeed(*import_second, tmp_path / "new")
    whole = {"first": arrays(tmp_path / "old")[1], "second": arrays(tmp_path / "new")[1]}
    assert whole["first"] != whole["second"]
    files = sorted(path.name for path in (tmp_path / "new").iterdir())
    killed = []
    for at in range(1, 50):
        folder = tmp_path / str(at)
        shutil.copytree(tmp_path / "old", folder)
        code = moesim(*import_second, folder, env={**environment, "KILLED_AT": str(at)}).returncode
        which, values = arrays(folder)
        assert values == whole[which], (at, which)
        if code == 0:
            break
        assert code == 9
        killed.append(which)
        # The next import ends as one that was not killed.
        succeed(*import_second, folder)
        assert arrays(folder) == ("second", whole["second"])
        assert sorted(path.name for path in folder.iterdir() if not path.name.endswith(".tmp")) == files
    assert code == 0 and {"first", "second"} == set(killed) and killed == sorted(killed)


def test_an_array_of_another_trace_is_noticed(tmp_path):
    """What was left by a program that was killed between the two, or copied by hand."""
    chosen = np.array([[0, 1], [2, 3]])
    succeed("import", *logits(tmp_path / "a.npy", chosen), "--out", tmp_path / "one")
    succeed("import", *logits(tmp_path / "a.npy", chosen[::-1]), "--out", tmp_path / "two")
    shutil.copy(tmp_path / "two" / "logits.npy", tmp_path / "one" / "logits.npy")
    words = ("route", "--routing", f"trace:{tmp_path / 'one'}", "--router", "top2", "--gpus", 1)
    expect_error(moesim(*words), 2, "trace.json", "/digest", "logits.npy is not what this document was written with", "import the trace again")
    # Older traces, and others', have no digest.
    document = trace_document(tmp_path / "one")
    del document["digest"]
    (tmp_path / "one" / "trace.json").write_text(json.dumps(document))
    succeed(*words)


def test_an_array_that_import_would_replace_is_not_read(tmp_path):
    (tmp_path / "mine").mkdir()
    words = logits(tmp_path / "mine" / "logits.new.npy", np.array([[0, 1]]))
    expect_error(moesim("import", *words, "--out", tmp_path / "mine"), 2, "would replace what the command reads")
