#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/routing/traces/trace.hpp"

namespace moesim::routing {

// Converts routing recorded by other programs to a trace. The caller has to give everything that a
// file does not contain; UsageErrors name the file and what is missing or wrong.

struct ImportedTrace {
  std::shared_ptr<const Trace> trace;
  std::vector<std::int64_t> steps, layers;  // their numbers; empty: the file has none
  std::string what;                         // what was read, for the trace's note
  std::vector<std::string> doubts = {};     // warnings
};

// Rows of a CSV: columns layer, expert, count and optionally step and rank; or, without expert and
// count, a column for each expert ("e0", "expert_0", ...). A missing expert has count 0.
struct CountTableQuery {
  std::string file;
  std::vector<std::pair<std::string, std::string>> where;  // column = value, all of them
  int experts = 0;
  int top_k = 0;
};
ImportedTrace import_count_table(const CountTableQuery& query);

// The trace of counts [step, rank, layer, expert]; the number of tokens follows from the first ones
// and shape.top_k. Throws UsageError naming `file` and, where it is about those, `first`.
std::shared_ptr<const Trace> trace_of_counts(
    const std::string& file, TraceShape shape, std::vector<std::int64_t> counts,
    const std::string& first = "the counts of the first step, rank and layer");

// One array of a .npy or .npz file. Floating point: logits; whole numbers: counts or, with an axis
// "choice", the experts of each token, best first.
struct ArrayQuery {
  std::string file;
  std::string array;  // of an .npz
  // In array order, some of step, micro-batch, rank, layer; of logits and choices also sequence and
  // token; expert or choice. None: those of logits by their number, [token, expert], [rank, token,
  // expert], [rank, layer, token, expert].
  std::vector<std::string> axes;
  std::string steps;           // .npz: the array that numbers the steps; "": none
  bool bfloat16_bits = false;  // 16-bit integers are bfloat16 logits
  int experts = 0;             // of choices: how many there are
  int top_k = 0;               // of logits and counts
};
// Micro-batch m of step s of M becomes step s M + m, token t of sequence q of T token q T + t.
ImportedTrace import_array(const ArrayQuery& query);

// Route logs: one JSON object a line, plain or .gz. Either of Megatron-Core's router tracer, a line
// for each step, layer and rank:
//   {"step": 0, "block": "decoder", "layer": 3, "rank": 0, "top_indices": [[12, 45], ...]}
// or of loggers of vLLM, a line for each token, or for several:
//   {"layer": 0, "token_idx": 7, "topk_ids": [12, 45], "topk_weights": [0.6, 0.1]}
struct RouteLogQuery {
  std::vector<std::string> files;  // vLLM: one per rank, in this order
  int experts = 0;
  int top_k = 0;            // 0: as logged
  std::int64_t tokens = 0;  // of a step; 0: each Megatron record is a step, all of a vLLM log one
};
// Megatron: records of prediction depths ("block" other than decoder) are left out; a layer's ranks
// are those that have it. Weights are kept where they are softmax probabilities: not all sum to 1,
// none to more. Refuses, by file and line, what is not such a record; records of different numbers
// of tokens without `tokens`; ranks and layers with different totals.
ImportedTrace import_route_logs(const RouteLogQuery& query);

// Chrome traces of the PyTorch profiler (Kineto), plain or .gz, one per rank of an expert-parallel
// group: the split sizes of the group's all_to_allv, which are rows per receiving rank.
struct ProfilerQuery {
  std::vector<std::string> files;
  std::string process_group;    // name or description; "": the only one in the file
  int layers = 0;               // MoE layers per step
  int exchanges = 2;            // of a layer's forward pass: the dispatch first, the combine last
  bool backward = false;        // as many again follow, last layer first
  std::int64_t row_values = 0;  // a row has so many values; 0: split sizes are rows
  int top_k = 0;
};
// One all-to-all of the group. Times are of NCCL's kernels: the slowest rank's holds waiting for
// others, the fastest's hardly any. 0: the files have no kernel for each exchange.
struct ProfiledExchange {
  int step = 0;
  int layer = 0;
  bool backward = false;
  int index = 0;                // within the layer's pass
  std::int64_t most_rows = 0;   // sent by the rank that sends most
  double mean_rows = 0;         // sent by a rank
  std::int64_t most_bytes = 0;  // sent by the rank that sends most; 0: "dtype" or size not written
  double fastest_us = 0;
  double slowest_us = 0;
};
struct ProfiledExchanges {
  // No trace where all blocks of all exchanges are equal: padded to a capacity (or balanced by
  // force), they say nothing of the routing.
  ImportedTrace routing;
  std::vector<ProfiledExchange> exchanges;  // in order of time
  int ranks = 0;
  std::vector<std::int64_t> block_rows;  // [layer] of padded exchanges: from each rank to each
};
// Refuses missing ranks, ranks with different numbers of exchanges or contradictory sizes,
// exchanges that are not alternately dispatch and combine, and padded ones among uneven ones.
ProfiledExchanges import_profiler_traces(const ProfilerQuery& query);

}  // namespace moesim::routing
