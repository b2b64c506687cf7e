#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/formats/csv.hpp"
#include "sim/profile/collective.hpp"

namespace moesim::study {

// One row of nccl_intranode.csv: nccl-tests inside a node.
struct CollectiveRow {
  std::string system;    // "h100_sxm"
  std::string device;    // "NVIDIA H100 80GB HBM3"; "" where the table does not say
  std::string version;   // of NCCL, as the source's folder names it
  std::string recorded;  // of NCCL, as the run itself says; "" where it does not
  profile::Collective kind = profile::Collective::all_to_all;
  bool reduces_bytes = false;  // a reduction of 8-bit integers: other arithmetic than training's
  int gpus = 0;
  double bytes = 0;  // nccl-tests' size column
  double time_us = 0;
};

// One stage of an MoE exchange kernel at one number of tokens.
struct MoeExchangeRow {
  std::string kernel;   // "gb200 TensorRT-LLM dispatch"
  std::string variant;  // what must be equal for two rows to be compared, kernel versions aside
  std::string version;
  int gpus = 0;
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  std::int64_t hidden = 0;
  double tokens = 0;  // per rank
  double time_us = 0;
};

// A table of `folder`, packed or plain.
CsvTable load_table(const std::string& folder, const std::string& name);
// A positive whole number, which the tables may write with a decimal point.
std::int64_t table_whole(const CsvTable& table, std::size_t row, const std::string& column);

// The rows of a table of `folder`, packed or plain. UsageError naming file, line and column for a
// table that is absent or malformed; a table of moves that the simulator does not know is skipped
// row by row.
std::vector<CollectiveRow> load_collectives(const std::string& folder);
// All-reduce inside a node of vidur_network_allreduce_sendrecv.csv; none where it is not there.
std::vector<CollectiveRow> load_vidur(const std::string& folder);
std::vector<MoeExchangeRow> load_tensorrt_llm(const std::string& folder);

}  // namespace moesim::study
