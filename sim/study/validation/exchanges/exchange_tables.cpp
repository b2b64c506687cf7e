#include "sim/study/validation/exchanges/exchange_tables.hpp"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include "sim/base/error.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/base/formats/gzip.hpp"

namespace moesim::study {
namespace {

std::optional<profile::Collective> collective(const std::string& name) {
  if (name == "alltoall") return profile::Collective::all_to_all;
  if (name == "all_reduce") return profile::Collective::all_reduce;
  if (name == "all_gather") return profile::Collective::all_gather;
  if (name == "reduce_scatter") return profile::Collective::reduce_scatter;
  return std::nullopt;
}

bool reduces(profile::Collective kind) {
  return kind == profile::Collective::all_reduce || kind == profile::Collective::reduce_scatter;
}

MoeExchangeRow shape(const CsvTable& table, std::size_t row) {
  MoeExchangeRow entry;
  entry.version = table.text(row, "version");
  entry.hidden = table_whole(table, row, "hidden_size");
  entry.experts = table_whole(table, row, "num_experts");
  return entry;
}

}  // namespace

CsvTable load_table(const std::string& folder, const std::string& name) {
  return CsvTable::parse(read_plain_or_packed(folder + "/" + name), folder + "/" + name);
}

std::int64_t table_whole(const CsvTable& table, std::size_t row, const std::string& column) {
  const double value = table.positive(row, column);
  if (value == std::floor(value) && value <= 1e15) return static_cast<std::int64_t>(value);
  throw UsageError(fmt::format("{}, line {}, column {}: '{}' is not a whole number", table.name,
                               table.lines[row], column, table.text(row, column)));
}

std::vector<CollectiveRow> load_collectives(const std::string& folder) {
  const CsvTable table = load_table(folder, "nccl_intranode.csv");
  const std::size_t recorded = table.find("nccl_version_recorded");
  std::vector<CollectiveRow> rows;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const auto kind = collective(table.text(row, "op_name"));
    if (!kind) continue;
    const std::string& source = table.text(row, "source_dir");
    CollectiveRow entry;
    entry.system = table.text(row, "system");
    entry.device = table.text(row, "device");
    entry.version = source.substr(source.rfind('/') + 1);
    if (recorded != CsvTable::npos) entry.recorded = table.rows[row][recorded];
    entry.kind = *kind;
    entry.reduces_bytes = reduces(*kind) && table.text(row, "nccl_dtype") == "int8";
    entry.gpus = static_cast<int>(table_whole(table, row, "num_gpus"));
    entry.bytes = table.positive(row, "size_bytes");
    entry.time_us = table.positive(row, "time_us");
    rows.push_back(entry);
  }
  return rows;
}

std::vector<CollectiveRow> load_vidur(const std::string& folder) {
  const std::string name = "vidur_network_allreduce_sendrecv.csv";
  const std::string path = folder + "/" + name;
  if (!std::filesystem::exists(path) && !std::filesystem::exists(path + ".gz")) return {};
  const std::map<std::string, std::string> devices = {{"a100_dgx", "NVIDIA A100-SXM4-80GB"},
                                                      {"h100_dgx", "NVIDIA H100 80GB HBM3"}};
  const CsvTable table = load_table(folder, name);
  std::vector<CollectiveRow> rows;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const auto device = devices.find(table.text(row, "system"));
    if (table.text(row, "op") != "all_reduce" || device == devices.end()) continue;
    const std::int64_t gpus = table_whole(table, row, "num_workers");
    if (table_whole(table, row, "devices_per_node") != gpus) continue;  // across nodes
    CollectiveRow entry;
    entry.system = device->first;
    entry.device = device->second;
    entry.version = "vidur";
    entry.kind = profile::Collective::all_reduce;
    entry.gpus = static_cast<int>(gpus);
    entry.bytes = table.positive(row, "size");
    entry.time_us = table.positive(row, "median") * 1e3;  // given in milliseconds
    rows.push_back(entry);
  }
  return rows;
}

std::vector<MoeExchangeRow> load_tensorrt_llm(const std::string& folder) {
  const CsvTable table = load_table(folder, "trtllm_moe_alltoall_gb200.csv");
  std::vector<MoeExchangeRow> rows;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    std::string stage = table.text(row, "op_name");
    if (stage.rfind("alltoall_", 0) == 0) stage.erase(0, 9);
    MoeExchangeRow entry = shape(table, row);
    entry.kernel = fmt::format("{} TensorRT-LLM {}", table.text(row, "system"), stage);
    entry.variant =
        fmt::format("{} {}", table.text(row, "kernel_source"), table.text(row, "moe_dtype"));
    entry.gpus = static_cast<int>(table_whole(table, row, "moe_ep_size"));
    entry.top_k = table_whole(table, row, "topk");
    entry.tokens = table.positive(row, "num_tokens");
    entry.time_us = table.positive(row, "latency_us");
    rows.push_back(entry);
  }
  return rows;
}

}  // namespace moesim::study
