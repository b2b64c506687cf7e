#include "tools/moesim/profiling/profile_curves.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "sim/base/error.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/base/units.hpp"
#include "tools/moesim/predict/software_times.hpp"

namespace moesim::tool {
namespace {

using Json = nlohmann::ordered_json;
using profile::Collective;
using profile::Estimate;
using profile::Profile;

using Ask = std::function<Estimate(double)>;

// One line of a panel: `work` over time is its y, in units of `work` per microsecond.
Json series(const std::string& label, const std::vector<double>& sizes, const Ask& ask,
            const std::function<double(double)>& work) {
  Json line = {{"label", label},       {"x", Json::array()},    {"y", Json::array()},
               {"low", Json::array()}, {"high", Json::array()}, {"extrapolated", Json::array()}};
  for (const double size : sizes) {
    Estimate estimate;
    try {
      estimate = ask(size);
    } catch (const Error&) {
      continue;  // outside what the profile can answer
    }
    line["x"].push_back(size);
    line["y"].push_back(work(size) / estimate.time_us);
    line["low"].push_back(work(size) / estimate.time_us_p95);
    line["high"].push_back(work(size) / estimate.time_us_p05);
    line["extrapolated"].push_back(estimate.support == profile::Support::extrapolated);
  }
  return line;
}

// Asks for what the profile's software makes of a class of kernels.
Ask in_software(const Profile& profile, const char* kernel_class, const Ask& ask) {
  return [&profile, kernel_class, ask](double size) {
    return as_software_runs_it(profile, kernel_class, ask(size));
  };
}

// `count` sizes from low to high, evenly spaced in their logarithm, whole.
std::vector<double> sizes(double low, double high, int count) {
  std::vector<double> values;
  for (int step = 0; step < count; ++step) {
    const double value = std::round(low * std::pow(high / low, step / (count - 1.0)));
    if (values.empty() || value > values.back()) values.push_back(value);
  }
  return values;
}

std::int64_t whole(double value) { return static_cast<std::int64_t>(value); }

Json panel(const std::string& title, const std::string& xlabel, const std::string& ylabel,
           bool bytes, const std::vector<Json>& lines) {
  Json kept = Json::array();
  for (const Json& line : lines) {
    if (!line["x"].empty()) kept.push_back(line);
  }
  return {
      {"title", title}, {"xlabel", xlabel}, {"ylabel", ylabel}, {"bytes", bytes}, {"series", kept}};
}

// TFLOP/s are FLOPs / us / 1e6.
Json gemm_panel(const Profile& profile) {
  std::vector<Json> lines;
  for (const auto& [n, k] :
       {std::pair{4096, 4096}, std::pair{11008, 4096}, std::pair{1024, 1024}}) {
    lines.push_back(
        series(fmt::format("n = {}, k = {}", n, k), sizes(16, 32768, 60),
               in_software(profile, "gemm",
                           [&, n = n, k = k](double m) { return profile.gemm(whole(m), n, k); }),
               [n = n, k = k](double m) { return 2e-6 * m * n * k; }));
  }
  return panel("Matrix product, bf16", "rows m", "TFLOP/s", false, lines);
}

Json attention_panel(const Profile& profile) {
  const auto batch = [](double length) { return std::max<std::int64_t>(1, 16384 / whole(length)); };
  std::vector<Json> lines;
  for (const int size : {128, 64}) {
    lines.push_back(series(
        fmt::format("head size {}", size), {128, 256, 512, 1024, 2048, 4096, 8192, 16384},
        in_software(profile, "attention",
                    [&, size](double length) {
                      return profile.attention({batch(length), whole(length), 32, 32, size}, false);
                    }),
        // Causal: half of 4 S^2 d FLOPs per head.
        [&, size](double length) {
          return 2e-6 * static_cast<double>(batch(length)) * length * length * 32 * size;
        }));
  }
  return panel("Causal attention, forward, 32 heads, 16,384 tokens", "sequence length", "TFLOP/s",
               false, lines);
}

Json expert_panel(const Profile& profile) {
  std::vector<Json> lines;
  for (const int experts : {1, 4, 8}) {
    lines.push_back(series(
        fmt::format("{} local expert{}", experts, experts == 1 ? "" : "s"), sizes(64, 65536, 40),
        in_software(
            profile, "gemm",
            [&](double rows) { return profile.expert_ffn(whole(rows), 4096, 14336, experts); }),
        [](double rows) { return 6e-6 * rows * 4096 * 14336; }));
  }
  return panel("Expert FFN, hidden 4,096, inner 14,336", "rows", "TFLOP/s", false, lines);
}

// Bus bandwidth as nccl-tests defines it: what a link carries, comparable across GPU counts.
double bus_share(Collective kind, int gpus) {
  const double share = (gpus - 1.0) / gpus;
  return kind == Collective::all_reduce ? 2 * share : share;
}

Json exchange_line(const Profile& profile, const std::string& label, Collective kind, int gpus) {
  return series(label, sizes(4096, 1 << 29, 60),
                in_software(profile, "exchange",
                            [&](double bytes) { return profile.collective(kind, gpus, bytes); }),
                [=](double bytes) { return 1e-3 * bytes * bus_share(kind, gpus); });
}

Json all_to_all_panel(const Profile& profile) {
  std::vector<Json> lines;
  for (const int gpus : {2, 4, 8}) {
    lines.push_back(
        exchange_line(profile, fmt::format("{} GPUs", gpus), Collective::all_to_all, gpus));
  }
  // A domain of NVLink can be several nodes (sim/GLOSSARY.md); without NVLink it is one.
  const bool has_nvlink = profile.device().nvlink_bandwidth.gb_per_s() > 0;
  return panel(has_nvlink ? "All-to-all inside an NVLink domain" : "All-to-all inside a node",
               "buffer per GPU", "bus bandwidth, GB/s", true, lines);
}

Json collectives_panel(const Profile& profile) {
  const int gpus = static_cast<int>(profile.device().gpus_per_node);
  return panel(fmt::format("Collectives on {} GPUs", gpus), "buffer per GPU", "bus bandwidth, GB/s",
               true,
               {exchange_line(profile, "all-reduce", Collective::all_reduce, gpus),
                exchange_line(profile, "all-gather", Collective::all_gather, gpus),
                exchange_line(profile, "reduce-scatter", Collective::reduce_scatter, gpus)});
}

Json memory_panel(const Profile& profile) {
  std::vector<Json> lines;
  for (const auto& [label, kernel] :
       {std::pair{"elementwise", profile::MemoryKernel::streaming},
        std::pair{"gated activation", profile::MemoryKernel::activation},
        std::pair{"normalisation", profile::MemoryKernel::normalization}}) {
    lines.push_back(series(
        label, sizes(65536, 4 * bytes_per_gib, 50),
        in_software(profile, "memory",
                    [&, kind = kernel](double bytes) { return profile.memory(bytes, kind); }),
        [](double bytes) { return 1e-3 * bytes; }));
  }
  return panel("Memory-bound kernels", "bytes read and written", "GB/s", true, lines);
}

// The multipliers of the classes that are drawn; "": a profile of hardware alone.
std::string multipliers_text(const Profile& profile) {
  if (!profile.software()) return "";
  std::vector<std::string> factors;
  for (const auto& [label, kernel_class] :
       {std::pair{"products", "gemm"}, std::pair{"attention", "attention"},
        std::pair{"exchanges", "exchange"}, std::pair{"memory-bound kernels", "memory"}}) {
    factors.push_back(fmt::format("{} {:.3f}", label, profile.software_multiplier(kernel_class)));
  }
  return fmt::format("\ntimes of {}, multiplied by its factors: {}", profile.software()->profile,
                     fmt::join(factors, ", "));
}

}  // namespace

std::string curves_json(const Profile& profile, const std::string& title) {
  const profile::Device& device = profile.device();
  const double nvlink = device.nvlink_bandwidth.gb_per_s();
  const std::string links =
      nvlink > 0 ? fmt::format("{:.0f} GB/s NVLink per direction", nvlink) : "GPUs on PCIe";
  const std::string subtitle = fmt::format(
      "{}: {:.0f} TFLOP/s dense bf16, {:.0f} GB/s memory, {} (peaks of the datasheet){}",
      device.name, device.peak_bf16_flops * 1e-12, device.hbm_bandwidth.gb_per_s(), links,
      multipliers_text(profile));
  const Json curves = {
      {"title", title.empty() ? "Cost curves of profile " + profile.name() : title},
      {"subtitle", subtitle},
      {"panels", Json::array({gemm_panel(profile), attention_panel(profile), expert_panel(profile),
                              all_to_all_panel(profile), collectives_panel(profile),
                              memory_panel(profile)})}};
  return json_text(curves);
}

}  // namespace moesim::tool
