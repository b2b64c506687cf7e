#include <string>

#include "sim/base/error.hpp"
#include "sim/cluster/measured_exchange.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/profiling/import_flags.hpp"
#include "tools/moesim/profiling/import_links.hpp"
#include "tools/moesim/profiling/import_nccl_tests.hpp"
#include "tools/moesim/profiling/import_profiler.hpp"
#include "tools/moesim/profiling/import_trace.hpp"
#include "tools/moesim/profiling/imported_trace.hpp"

namespace moesim::tool {
namespace {

ExitCode run(const CommandLine& line) {
  if (line.positionals.empty()) {
    throw UsageError(
        "import: no file given: a .csv, .npy, .npz, .json, .json.gz, .jsonl, or nccl-tests output "
        "as .txt or .log; with --cluster also logs of perftest, nvbandwidth and DeepEP");
  }
  if (line.has("cluster")) return import_links(line);
  // A profiler trace and a file of nccl-tests -J are both .json: only the latter takes a base.
  const bool is_json = line.has("base") && all_end_with(line, {".txt", ".log", ".json"});
  if (is_json || all_end_with(line, {".txt", ".log"})) return import_exchanges(line);
  const std::string folder = needed_value(line, "out", "the folder of the new trace");
  if (all_end_with(line, {".json", ".json.gz"})) return import_profiler(line, folder);
  return import_trace(line, folder);
}

}  // namespace

Command import_command() {
  return {
      "import",
      "logits, routes, counts into a trace; measured logs into a profile",
      "FILE... --out FOLDER|FILE.json [options]",
      "moesim import counts.csv --experts 8 --top-k 2 --out counts",
      {{"out", "FOLDER", "none: needed",
        "of the trace: trace.json and its array; of logs: the profile or cluster, as FILE.json"},
       {"top-k", "K", "none: a trace of logits or counts needs it",
        "experts each token was sent to"},
       {"experts", "E", "none: .csv, .jsonl need it",
        "how many there are (.csv, .jsonl, choices); a missing one counted 0; of DeepEP's tests "
        "[256]; of padded exchanges (.json), for the capacity"},
       {"where", "COLUMN=VALUE,...", "all rows", ".csv: the rows to take"},
       {"axes", "NAME,...", "of logits [rank,][layer,]token,expert",
        "of a .npy or .npz, in order: step, micro-batch, rank, layer, sequence, token, and expert "
        "or choice; micro-batches become steps. Floating point: logits; whole numbers: counts, or "
        "with choice each token's experts, best first"},
       {"array", "NAME", "none: .npz needs it", "the array to take"},
       {"dtype", "bfloat16", "the file's", ".npy of 16-bit integers: they are bfloat16 logits"},
       {"tokens", "N", "a record's",
        ".jsonl: a step has N tokens of a rank and layer, in the order of the log; .json of padded "
        "exchanges: tokens of a rank, for the capacity factor"},
       {"steps", "NAME", "not numbered", ".npz: the array of the steps' numbers"},
       {"layers", "L", "none: .json needs it", "MoE layers of a step; one .json per rank"},
       {"exchanges-per-layer", "N", "2",
        ".json: all-to-alls of a layer's forward pass, dispatch first, combine last"},
       {"backward", "", "", ".json: as many again follow in each step, last layer first"},
       {"process-group", "NAME", "the only one", ".json: name or description"},
       {"row-values", "N", "1; padded exchanges need it",
        ".json: split sizes count values, N of them a row; of exchanges without split sizes "
        "(padded) the hidden size"},
       with_words({"op", "NAME", "as the output says",
                   "of nccl-tests that do not say which program ran: all-to-all, all-reduce, "
                   "all-gather, reduce-scatter; with --cluster also send-receive"},
                  words_in<cluster::measured_operation_names>),
       {"nccl", "VERSION", "", "of NCCL that was tested, of logs that do not say"},
       {"base", "NAME|FILE", "none: .txt needs it",
        "of nccl-tests, printed or -J (.json): the profile that has everything else"},
       {"other-gpu", "", "off", "of nccl-tests: the base may be of another GPU than the output"},
       {"cluster", "NAME|FILE", "",
        "make a cluster: this one, with exchanges and links as measured by nccl-tests (one or "
        "several nodes; printed or -J), perftest (ib_write_bw, ib_send_lat, ...), nvbandwidth "
        "and DeepEP's test_internode.py"},
       {"law-out", "FILE.json", "",
        "of a cluster: each exchange of nccl-tests by size, measured and as it would have been "
        "predicted, with its 90 % band; a line of it is printed in any case"},
       {"nodes", "N", "", "of DeepEP's tests, which do not say"},
       {"name", "TEXT", "that of --out", "of the trace, profile or cluster"},
       {"model", "TEXT", "not stated", "whose routing it is"},
       {"source", "TEXT", "the file", "where the figures come from"},
       {"licence", "TEXT", "not stated", "of the figures"},
       with_words({"origin", "NAME", "not stated", "measured, published or synthetic"},
                  [] { return trace_origins(); })},
      false,
      100000,
      run};
}

}  // namespace moesim::tool
