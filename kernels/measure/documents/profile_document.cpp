#include "kernels/measure/documents/profile_document.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>

#include "kernels/measure/fit/fit.hpp"
#include "kernels/measure/suites/gemm_fp8.hpp"
#include "kernels/measure/suites/launch.hpp"
#include "kernels/measure/suites/overlap.hpp"
#include "kernels/measure/suites/sustained.hpp"
#include "sim/base/error.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/shipped.hpp"
#include "sim/profile/profile.hpp"

namespace moesim::kernels::measure {
namespace {

using nlohmann::ordered_json;

ordered_json load_profile(const std::string& name) {
  const Document document = Document::load(find_document("hardware", name));
  if (document.root().text_or("format", "") != "moesim-profile") {
    throw UsageError(fmt::format("--base {}: expected a profile of hardware", name));
  }
  return ordered_json::parse(document.root().json().dump());
}

std::string device_name(const ordered_json& profile) {
  return profile.at("devices").at(0).at("name");
}

bool has_curve(const ordered_json& profile, const std::string& op) {
  for (const auto& curve : profile.at("curves")) {
    if (curve.at("op") == op) return true;
  }
  return false;
}

// The shipped profile whose kernel curves stand in for those of a device that has none: its key
// kernels_stand_in_for says so, by a part of the device's name or by its compute capability.
std::string kernel_donor(const DeviceFacts& device) {
  std::string by_capability;
  for (const std::string& name : shipped_names("hardware")) {
    const Document document = Document::load(find_document("hardware", name));
    const auto stands_in = document.root().find("kernels_stand_in_for");
    if (!stands_in) continue;
    if (stands_in->has("device_names")) {
      for (const std::string& part : stands_in->texts("device_names")) {
        if (device.name.find(part) != std::string::npos) return name;
      }
    }
    const std::vector<double> majors = stands_in->numbers("compute_major");
    const auto major = static_cast<double>(device.compute_major);
    if (major >= majors.at(0) && major <= majors.at(1)) by_capability = name;
  }
  if (!by_capability.empty()) return by_capability;
  throw Error(
      fmt::format("no shipped profile's kernels stand in for {}, compute capability {}.{}: "
                  "give a profile with --base",
                  device.name, device.compute_major, device.compute_minor));
}

ordered_json figure(const ordered_json& value, const char* unit, const char* origin,
                    const std::string& source) {
  return {{"value", value}, {"unit", unit}, {"origin", origin}, {"source", source}};
}

class Writer {
 public:
  Writer(const RunFacts& facts, const std::vector<Point>& points,
         const std::vector<Missing>& missing)
      : facts_(facts), points_(points), missing_(missing) {
    base_name_ = facts.base.empty() ? usual_base(facts.device) : facts.base;
    base_ = load_profile(base_name_);
    same_device_ = device_name(base_) == facts.device.name;
    donor_name_ = has_curve(base_, "gemm") ? base_name_ : kernel_donor(facts.device);
    donor_ = donor_name_ == base_name_ ? base_ : load_profile(donor_name_);
    // A profile is one node: exchanges that left it are points, no curve.
    for (const Point& point : points) {
      const bool across = point.params.contains("gpus") &&
                          point.params.at("gpus").get<int>() > facts.device.gpus_in_node;
      if (!across) fitted_.push_back(point);
    }
    source_ = fmt::format("moesim profile {} on {}", facts.tool_version, facts.device.name);
  }

  ordered_json write() {
    ordered_json document;
    document["format"] = "moesim-profile";
    document["version"] = 1;
    document["name"] = facts_.name;
    document["tool"] = {{"name", "moesim profile"},
                        {"version", facts_.tool_version},
                        {"commit", nullptr},
                        {"seed", facts_.seed}};
    if (!facts_.commit.empty()) document["tool"]["commit"] = facts_.commit;
    document["conditions"] = conditions();
    document["devices"] = ordered_json::array({device()});
    document["topology"] = topology();
    document["curves"] = curves();
    if (std::optional<ordered_json> overlap = fit_overlap(fitted_, source_)) {
      document["overlap"] = std::move(*overlap);
    }
    document["points"] = ordered_json::array();
    for (const Point& point : points_) document["points"].push_back(to_json(point));
    document["missing"] = ordered_json::array();
    for (const Missing& gap : missing_) {
      document["missing"].push_back(
          {{"suite", gap.suite}, {"reason", gap.reason}, {"hint", gap.hint}});
    }
    if (fitted_.size() < points_.size()) {
      document["missing"].push_back({{"suite", "collectives across nodes"},
                                     {"reason", "a profile is one node: they are points, no curve"},
                                     {"hint", "describe the network in a cluster"}});
    }
    return document;
  }

 private:
  ordered_json conditions() const {
    const auto version = [](const std::string& text) {
      return text.empty() ? ordered_json() : ordered_json(text);
    };
    const Versions& versions = facts_.versions;
    return {{"measured_by", "moesim profile"},
            {"arguments", facts_.arguments},
            {"environment", listed_environment(environ)},
            {"driver", version(versions.driver)},
            {"cuda_runtime", version(versions.cuda_runtime)},
            {"cublas", version(versions.cublas)},
            {"nccl", version(versions.nccl)},
            {"cupti", version(versions.cupti)},
            {"device_state", device_state()},
            {"base", base_name_},
            {"reason", "a version that is null was not loaded"}};
  }

  // At the end of the run: a power limit below the datasheet's, or MIG, explains slow points.
  ordered_json device_state() const {
    const DeviceState& state = facts_.state;
    const auto watts = [](double value) {
      return value > 0 ? ordered_json(value) : ordered_json();
    };
    const auto flag = [](const std::optional<bool>& value) {
      return value ? ordered_json(*value) : ordered_json();
    };
    return {{"driver_version", state.driver.empty() ? ordered_json() : ordered_json(state.driver)},
            {"power_limit_w", watts(state.power_limit_w)},
            {"power_w", watts(state.power_w)},
            {"throttled_by", state.throttled_by},
            {"ecc", flag(state.ecc)},
            {"mig", flag(state.mig)},
            {"trouble", state.trouble}};
  }

  // The device's own word, else the base's datasheet, which is a guess if it is another device.
  ordered_json told_or_base(const char* key, double told, const char* unit,
                            const std::string& source) const {
    const ordered_json& base = base_.at("devices").at(0).at(key);
    if (same_device_) return base;
    if (told > 0) return figure(told, unit, "derived", source);
    return figure(base.at("value"), unit, "assumed",
                  fmt::format("taken from {}: this device does not tell", base_name_));
  }

  ordered_json device() const {
    const DeviceFacts& device = facts_.device;
    const std::string driver = "told by the CUDA driver";
    ordered_json out;
    out["name"] = device.name;
    out["uuid"] = device.uuid.empty() ? ordered_json() : ordered_json(device.uuid);
    if (base_.at("devices").at(0).contains("usual_cluster")) {
      out["usual_cluster"] = base_.at("devices").at(0).at("usual_cluster");
    }
    out["sms"] = figure(device.sms, "streaming multiprocessors", "measured", driver);
    out["hbm_bytes"] = figure(device.memory_bytes, "bytes", "measured", driver);
    out["hbm_bytes_per_second"] =
        told_or_base("hbm_bytes_per_second", device.memory_bytes_per_second, "bytes/s",
                     "memory clock and bus width, told by the CUDA driver");
    out["l2_bytes"] = figure(device.l2_bytes, "bytes", "measured", driver);
    out["peak_bf16_flops"] = told_or_base("peak_bf16_flops", device.peak_bf16_flops, "FLOP/s",
                                          "SMs, clock and the FLOPs per cycle of its architecture");
    add_sustained(out);
    for (const char* link :
         {"nvlink_bytes_per_second", "pcie_bytes_per_second", "c2c_bytes_per_second"}) {
      if (!base_.at("devices").at(0).contains(link)) continue;
      out[link] = told_or_base(link, 0, "bytes/s per direction", "");
    }
    if (std::optional<ordered_json> rate = host_copies()) {
      out["host_copy_bytes_per_second"] = std::move(*rate);
    }
    out["gpus_per_node"] = told_or_base("gpus_per_node", 0, "GPUs in one NVLink domain", "");
    return out;
  }

  const Point* sustained_point(const std::string& dtype, double zeros) const {
    for (const Point& point : fitted_) {
      if (point.op != sustained_op || !point.time_us()) continue;
      if (point.params.value("dtype", "") != dtype) continue;
      if (point.params.value(zero_share, 0.0) == zeros) return &point;
    }
    return nullptr;
  }

  // What products of a data type hold without a rest, as measured, else the base's.
  void add_sustained(ordered_json& out, const char* rate, const std::string& dtype) const {
    const Point* const full = sustained_point(dtype, 0);
    if (full == nullptr) {
      if (base_.at("devices").at(0).contains(rate)) out[rate] = told_or_base(rate, 0, "FLOP/s", "");
      return;
    }
    const auto [m, n, k] =
        std::array{full->params.at("m").get<double>(), full->params.at("n").get<double>(),
                   full->params.at("k").get<double>()};
    std::string how = fmt::format("{}, products of {} x {} x {} back to back", source_, m, n, k);
    if (full->clock_mhz > 0) how += fmt::format(", {:.0f} MHz", full->clock_mhz);
    if (full->details.contains("power_w")) {
      how += fmt::format(", {:.0f} W", full->details.at("power_w").get<double>());
    }
    out[rate] = figure(2 * m * n * k / *full->time_us() * 1e6, "FLOP/s", "measured", how);
  }

  void add_sustained(ordered_json& out) const {
    constexpr const char* padding = "sustained_padding_share";
    const ordered_json& base = base_.at("devices").at(0);
    if (base.contains(padding)) out[padding] = told_or_base(padding, 0, "ratio", "");
    add_sustained(out, "sustained_bf16_flops", "bf16");
    add_sustained(out, "sustained_fp8_flops", fp8_tensor);
    add_sustained(out, "sustained_fp8_block_flops", fp8_block);
    constexpr double zeros = 0.5;
    const Point* const full = sustained_point("bf16", 0);
    const Point* const padded = sustained_point("bf16", zeros);
    if (full == nullptr || padded == nullptr) return;
    const double share = 1 - (1 - *padded->time_us() / *full->time_us()) / zeros;
    if (share <= 0) return;
    out[padding] =
        figure(std::min(1.0, share), "ratio", "measured",
               fmt::format("{}, the same products with half of the rows zeros: {:.0f} us, not "
                           "{:.0f} us",
                           source_, *padded->time_us(), *full->time_us()));
  }

  // The slower direction's longest copy, else the base's.
  std::optional<ordered_json> host_copies() const {
    constexpr const char* key = "host_copy_bytes_per_second";
    std::map<std::string, std::pair<double, double>> longest;  // by direction: bytes, rate
    for (const Point& point : fitted_) {
      const std::optional<double> time_us = point.time_us();
      if (point.op != "host-copy" || point.synthetic || !time_us) continue;
      const double bytes = point.params.at("bytes");
      auto& [most, rate] = longest[point.params.at("direction")];
      if (bytes < static_cast<double>(long_copy_bytes) || bytes < most) continue;
      most = bytes;
      rate = bytes / *time_us * 1e6;
    }
    const double one_way = longest[copy_to_device].second, back = longest[copy_to_host].second;
    if (one_way > 0 && back > 0) {
      return figure(std::min(one_way, back), "bytes/s per direction", "measured",
                    fmt::format("{}, pinned memory, the slower of {:.4g} GB/s to the device and "
                                "{:.4g} GB/s to the host",
                                source_, one_way / 1e9, back / 1e9));
    }
    if (!base_.at("devices").at(0).contains(key)) return std::nullopt;
    return told_or_base(key, 0, "bytes/s per direction", "");
  }

  ordered_json topology() const {
    ordered_json out = base_.at("topology");
    if (!same_device_) {
      out["source"] = fmt::format("assumed to be that of {}", base_name_);
    }
    return out;
  }

  // A curve of the base, said to be assumed if it is another device's.
  static ordered_json carried(ordered_json curve, const std::string& from, bool same_device) {
    if (same_device) return curve;
    curve["origin"] = "assumed";
    if (curve.contains("branches")) {
      for (auto& branch : curve["branches"]) branch["origin"] = "assumed";
    }
    curve["note"] = fmt::format("Carried over from {}, another device. {}", from,
                                curve.value("note", std::string()));
    return curve;
  }

  std::optional<ordered_json> measured(const ordered_json& prior) {
    const std::string op = prior.at("op");
    const std::string type = prior.at("params").value("dtype", profile::default_data_type);
    const std::int64_t sms = facts_.device.sms;
    if (op == "gemm" && type == profile::default_data_type) {
      return fit_gemm(fitted_, prior, sms, source_);
    }
    if (op == "gemm") return measured_narrow(type, prior);
    if (op == "attention") {
      // Measured in bf16: curves of other data types stay the base's.
      if (type != profile::default_data_type) return std::nullopt;
      return fit_attention(fitted_, prior, sms, source_);
    }
    if (op == "memory") return fit_memory(fitted_, prior.at("params").at("kernel"), source_);
    if (op == "permute" || op == "combine") {
      return streaming_.is_null() ? std::nullopt : fit_row_moves(fitted_, op, streaming_, source_);
    }
    if (prior.value("default", false) && !facts_.versions.nccl.empty()) {
      return fit_collective(fitted_, op, facts_.versions.nccl, prior, source_);
    }
    return std::nullopt;
  }

  // A product of a data type for which there is a suite. Its curve may begin with that of bf16, as
  // measured if it is.
  std::optional<ordered_json> measured_narrow(const std::string& type, const ordered_json& prior) {
    if (type != fp8_tensor && type != fp8_block) return std::nullopt;
    return fit_gemm_fp8(fitted_, prior, products_, facts_.device.sms, source_);
  }

  // All measured curves, and the base's for the rest. A measured exchange stands beside the
  // published ones of other NCCL versions and is the default.
  ordered_json curves() {
    ordered_json list = ordered_json::array();
    ordered_json priors = base_.at("curves");
    if (donor_name_ != base_name_) {
      for (const auto& curve : donor_.at("curves")) {
        if (!has_curve(base_, curve.at("op"))) priors.push_back(curve);
      }
    }
    for (const auto& prior : priors) {
      if (prior.at("op") == "memory" && prior.at("params").at("kernel") == "streaming") {
        streaming_ = fit_memory(fitted_, "streaming", source_).value_or(prior);
      }
      if (prior.at("op") == "gemm" &&
          prior.at("params").value("dtype", profile::default_data_type) ==
              profile::default_data_type) {
        products_ = fit_gemm(fitted_, prior, facts_.device.sms, source_).value_or(prior);
      }
    }
    for (const auto& prior : priors) {
      const bool from_base = has_curve(base_, prior.at("op"));
      ordered_json kept =
          carried(prior, from_base ? base_name_ : donor_name_, from_base && same_device_);
      if (std::optional<ordered_json> curve = measured(kept)) {
        const bool exchange = curve->contains("branches");
        const bool same_version = exchange && kept["params"]["nccl"] == (*curve)["params"]["nccl"];
        list.push_back(std::move(*curve));
        if (!exchange || same_version) continue;
        kept["default"] = false;
      }
      list.push_back(std::move(kept));
    }
    return list;
  }

  const RunFacts& facts_;
  const std::vector<Point>& points_;
  const std::vector<Missing>& missing_;
  std::vector<Point> fitted_;
  std::string base_name_;
  ordered_json base_;
  bool same_device_ = false;
  std::string donor_name_;
  ordered_json donor_;
  std::string source_;
  ordered_json streaming_;
  ordered_json products_;  // the curve of bf16 products
};

}  // namespace

std::string usual_base(const DeviceFacts& device) {
  for (const std::string& name : shipped_names("hardware")) {
    const Document document = Document::load(find_document("hardware", name));
    if (document.root().text_or("format", "") != "moesim-profile") continue;
    if (document.root().items("devices").front().text("name") == device.name) return name;
  }
  return kernel_donor(device);
}

ordered_json listed_environment(char** environment) {
  ordered_json listed = ordered_json::object();
  for (char** entry = environment; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) continue;
    if (text.starts_with("NCCL_") || text.starts_with("CUDA_")) {
      listed[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  return listed;
}

std::string as_name(const std::string& device) {
  std::string name;
  for (const char letter : device) {
    const auto byte = static_cast<unsigned char>(letter);
    if (std::isalnum(byte) != 0 && byte < 128) {
      name += static_cast<char>(std::tolower(byte));
    } else if (letter == '.') {
      name += letter;
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  while (!name.empty() && (name.back() == '-' || name.back() == '.')) name.pop_back();
  while (!name.empty() && (name.front() == '.' || name.front() == '-')) name.erase(0, 1);
  return name.empty() ? "node" : name;
}

ordered_json profile_document(const RunFacts& facts, const std::vector<Point>& points,
                              const std::vector<Missing>& missing) {
  ordered_json document = Writer(facts, points, missing).write();
  Document::parse(document.dump(), "the new profile")
      .validate(Document::load(find_document("schema", "profile.schema")));
  return document;
}

}  // namespace moesim::kernels::measure
