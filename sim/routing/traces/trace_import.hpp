#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/routing/traces/trace.hpp"

namespace moesim::routing {

// Converts counts recorded by other programs to a trace. The caller has to give everything that a
// file does not contain; UsageErrors name the file and what is missing or wrong.

struct ImportedCounts {
  std::shared_ptr<const Trace> trace;
  std::vector<std::int64_t> steps, layers;  // their numbers; empty: the file has none
  std::string what;                         // what was read, for the trace's note
};

// Rows of a CSV: columns layer, expert, count and optionally step and rank. A missing expert has
// count 0.
struct CountTableQuery {
  std::string file;
  std::vector<std::pair<std::string, std::string>> where;  // column = value, all of them
  int experts = 0;
  int top_k = 0;
};
ImportedCounts import_count_table(const CountTableQuery& query);

// One array of a .npy or .npz file of whole numbers.
struct CountArrayQuery {
  std::string file;
  std::string array;              // of an .npz
  std::vector<std::string> axes;  // step, rank, layer, micro-batch, expert, in array order
  std::string steps;              // .npz: the array that numbers the steps; "": none
  int top_k = 0;
};
// Micro-batch m of step s of M becomes step s M + m.
ImportedCounts import_count_array(const CountArrayQuery& query);

// Chrome traces of the PyTorch profiler (Kineto), plain or .gz, one per rank of an expert-parallel
// group: the split sizes of the group's all_to_allv, which are rows per receiving rank.
struct ProfilerQuery {
  std::vector<std::string> files;
  std::string process_group;    // name or description; "": the only one in the file
  int layers = 0;               // MoE layers per step
  int exchanges = 2;            // of a layer's forward pass: the dispatch first, the combine last
  bool backward = false;        // as many again follow, last layer first
  std::int64_t row_values = 1;  // split sizes count values: this many are a row
  int top_k = 0;
};
// Refuses missing ranks, ranks with different numbers of exchanges or contradictory sizes, and
// exchanges that are not alternately dispatch and combine.
ImportedCounts import_profiler_traces(const ProfilerQuery& query);

}  // namespace moesim::routing
