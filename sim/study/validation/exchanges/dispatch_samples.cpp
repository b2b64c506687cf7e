#include "sim/study/validation/exchanges/dispatch_samples.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "sim/base/text.hpp"
#include "sim/model/precision.hpp"
#include "sim/study/validation/exchanges/exchange_tables.hpp"

namespace moesim::study {
namespace {

using profile::DispatcherStage;
using profile::MoeTraffic;
using profile::SentOnce;

constexpr double hopper_link = 450e3;  // bytes per microsecond and direction, datasheets
constexpr double h800_link = 200e3;    // 400 GB/s both ways
constexpr double blackwell_link = 900e3;
constexpr double nic_400 = 50e3;  // a port of 400 Gb/s per GPU
constexpr double nic_800 = 100e3;

bool is_board_of_four(const std::string& system) { return system.rfind("gb", 0) == 0; }

double link_of(const std::string& device) {
  if (has_part(device, "H800")) return h800_link;
  return has_part(device, "B200") || has_part(device, "B300") ? blackwell_link : hopper_link;
}

double row_of(DispatcherStage stage, double hidden, bool fp8) {
  return fp8 && stage == DispatcherStage::dispatch ? profile::fp8_row_bytes(hidden) : 2 * hidden;
}

constexpr DispatcherStage both[] = {DispatcherStage::dispatch, DispatcherStage::combine};

// The columns that both tables of DeepEP have.
DispatchSample deepep_row(const CsvTable& table, std::size_t row, SentOnce sent,
                          DispatcherStage stage) {
  DispatchSample sample;
  sample.system = table.text(row, "system");
  sample.device = table.text(row, "device");
  sample.library = "version " + table.text(row, "version");
  sample.stage = stage;
  const int node = is_board_of_four(sample.system) ? 4 : 8;
  sample.group = {static_cast<int>(node * table_whole(table, row, "node_num")), node};
  const auto hidden = table_whole(table, row, "hidden_size");
  const MoeTraffic traffic = {table_whole(table, row, "num_experts"),
                              table_whole(table, row, "num_topk")};
  const double tokens = table.positive(row, "num_token");
  sample.load = profile::balanced_load(sent, stage, traffic, sample.group, tokens);
  sample.row_bytes = row_of(stage, static_cast<double>(hidden), true);
  sample.hidden = static_cast<double>(hidden);
  sample.rates = {link_of(sample.device), nic_400};
  sample.where = fmt::format("{} tokens ({}, hidden {}, top-{} of {}", tokens, sample.system,
                             hidden, traffic.top_k, traffic.experts);
  return sample;
}

// What a source of internode_alltoall.csv measured on.
struct Setting {
  const char* source;  // part of the column
  const char* device;  // "" and 0 below: by the row's system
  double nic;
  int per_domain;
  profile::Transport transport;
};
constexpr Setting settings[] = {
    {"DeepEP V1 legacy", "NVIDIA H800", nic_400, 8, profile::Transport::gpu},
    {"pplx-kernels", "NVIDIA H100", nic_400, 1, profile::Transport::gpu},
    {"(2026-06-21)", "NVIDIA B300", nic_800, 8, profile::Transport::proxy},
    {"(2026-06-22)", "NVIDIA H100", nic_400, 8, profile::Transport::proxy},
    {"HybridEP README", "", nic_400, 0, profile::Transport::gpu},
};

// The number before " SMs" of a library's name, 0: none there.
int sms_of(const CsvTable& table, std::size_t row) {
  const std::string& library = table.text(row, "library");
  const std::size_t end = library.find(" SMs");
  if (end == std::string::npos) return 0;
  const std::size_t begin = library.substr(0, end).rfind(' ') + 1;  // npos: from the first letter
  const std::string number = library.substr(begin, end - begin);
  constexpr std::int64_t most_sms = 1 << 16;
  return static_cast<int>(
      parse_whole(fmt::format("{}, line {}, column library", table.name, table.lines[row]), number,
                  1, most_sms));
}

// The sample of a row whose system and library are known; else nothing.
std::optional<DispatchSample> across_row(const CsvTable& table, std::size_t row) {
  const std::string source = table.text(row, "source");
  const auto* setting =
      std::find_if(std::begin(settings), std::end(settings),
                   [&](const Setting& each) { return has_part(source, each.source); });
  const std::string library = table.text(row, "library");
  const bool known =
      has_part(library, "DeepEP") || has_part(library, "HybridEP") || has_part(library, "UCCL");
  if (setting == std::end(settings) || !known) return std::nullopt;
  const std::string metric = table.text(row, "metric");
  const std::string workload = table.text(row, "workload");
  if (has_part(library, "V1 LL") && metric == "bandwidth")
    return std::nullopt;  // of the latency beside
  DispatchSample sample;
  sample.system = table.text(row, "system");
  sample.library = library;
  const std::string op = table.text(row, "op");
  sample.stage = has_part(op, "combine") ? DispatcherStage::combine : DispatcherStage::dispatch;
  const bool rack = has_part(sample.system, "GB200");
  sample.device = setting->device[0] != 0 ? setting->device : rack ? "NVIDIA GB200" : "NVIDIA H100";
  const int gpus = static_cast<int>(table_whole(table, row, "gpus"));
  sample.group = {gpus, setting->per_domain > 0 ? setting->per_domain : rack ? 72 : 8};
  const bool hybrid = has_part(source, "HybridEP README");
  const MoeTraffic traffic = {hybrid ? 8 * gpus : 256, 8};
  const bool each_expert = has_part(library, "LL") || has_part(source, "pplx");
  const double tokens = has_part(workload, "128 tok")  ? 128
                        : has_part(workload, "1 tok/") ? 1
                                                       : 4096;
  sample.load = profile::balanced_load(each_expert ? SentOnce::per_expert : SentOnce::per_node,
                                       sample.stage, traffic, sample.group, tokens);
  const bool fp8 = each_expert || has_part(source, "V1") || has_part(op, "FP8");
  sample.row_bytes = row_of(sample.stage, 7168, fp8);
  sample.sms = sms_of(table, row);
  sample.rates = {link_of(sample.device), setting->nic, setting->transport};
  sample.where = fmt::format("{} GPUs, {} {}", gpus, library, op);
  if (metric == "latency") {
    sample.time_us = table.positive(row, "value");
    return sample;
  }
  const int places = sample.group.crosses() ? sample.group.domains() : gpus;
  const double counted =
      each_expert ? tokens * 8 : tokens * profile::distinct_places(traffic, places);
  sample.time_us = counted * sample.row_bytes / (table.positive(row, "value") * 1e3);
  return sample;
}

}  // namespace

std::vector<DispatchSample> load_deepep(const std::string& folder) {
  const CsvTable table = load_table(folder, "deepep_normal.csv");
  std::vector<DispatchSample> samples;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    for (const DispatcherStage stage : both) {
      DispatchSample sample = deepep_row(table, row, SentOnce::per_node, stage);
      const std::string name = name_of(stage);
      sample.sms = static_cast<int>(table_whole(table, row, name + "_sms"));
      sample.time_us = table.positive(row, name + "_transmit_us");
      sample.where += fmt::format(", {} SMs)", sample.sms);
      samples.push_back(sample);
    }
  }
  return samples;
}

std::vector<DispatchSample> load_deepep_low_latency(const std::string& folder) {
  const CsvTable table = load_table(folder, "deepep_lowlatency.csv");
  std::vector<DispatchSample> samples;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    for (const DispatcherStage stage : both) {
      DispatchSample sample = deepep_row(table, row, SentOnce::per_expert, stage);
      if (stage == DispatcherStage::dispatch) sample.row_bytes += 16;  // the index of its token
      sample.time_us = table.positive(row, std::string(name_of(stage)) + "_avg_t_us");
      sample.where += ")";
      samples.push_back(sample);
    }
  }
  return samples;
}

std::vector<DispatchSample> load_one_sided(const std::string& folder) {
  const CsvTable table = load_table(folder, "trtllm_moe_alltoall_gb200.csv");
  std::vector<DispatchSample> samples;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const std::string op = table.text(row, "op_name");
    if (table.text(row, "kernel_source") != "NVLinkOneSided" || has_part(op, "prepare")) continue;
    DispatchSample sample;
    sample.system = table.text(row, "system");
    sample.device = table.text(row, "device");
    sample.stage = has_part(op, "dispatch") ? DispatcherStage::dispatch : DispatcherStage::combine;
    const int gpus = static_cast<int>(table_whole(table, row, "moe_ep_size"));
    sample.group = {gpus, gpus};
    const auto hidden = static_cast<double>(table_whole(table, row, "hidden_size"));
    const double tokens = table.positive(row, "num_tokens");
    const double met =
        static_cast<double>(std::min<std::int64_t>(table_whole(table, row, "topk"), gpus));
    sample.load.tokens = tokens;
    sample.load.copies = tokens * met;
    sample.load.link_rows = tokens * met * (gpus - 1) / gpus;
    sample.row_bytes = sample.stage == DispatcherStage::dispatch
                           ? hidden * model::element_bytes(model::Precision::nvfp4)
                           : 2 * hidden;
    sample.rates = {blackwell_link, 0};
    sample.time_us = table.positive(row, "latency_us");
    sample.where = fmt::format("{} tokens ({} GPUs)", tokens, gpus);
    samples.push_back(sample);
  }
  return samples;
}

std::vector<DispatchSample> load_across(const std::string& folder) {
  const CsvTable table = load_table(folder, "internode_alltoall.csv");
  std::vector<DispatchSample> samples;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const auto sample = across_row(table, row);
    if (sample) samples.push_back(*sample);
  }
  return samples;
}

}  // namespace moesim::study
