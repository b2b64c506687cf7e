#include "kernels/measure/documents/nccl_tests.hpp"

#include <fmt/format.h>

#include <optional>

#include "kernels/measure/fit/beyond_sizes.hpp"
#include "kernels/measure/fit/fit.hpp"
#include "sim/base/error.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/shipped.hpp"
#include "sim/profile/nccl_tests/log.hpp"
#include "sim/profile/nccl_tests/operation.hpp"

namespace moesim::kernels::measure {
namespace {

using nlohmann::ordered_json;

void check_alike(const NcclTestsImport& request) {
  const NcclTestsRun& first = request.runs.front();
  for (const NcclTestsRun& run : request.runs) {
    if (run.device != first.device || run.dtype != first.dtype) {
      throw UsageError(fmt::format("{}: {} in {}, but {} is of {} in {}", run.file, run.device,
                                   run.dtype, first.file, first.device, first.dtype));
    }
  }
  const bool reduces = request.op == "all-reduce" || request.op == "reduce-scatter";
  if (reduces && first.dtype != "half" && first.dtype != "bfloat16") {
    throw UsageError(
        fmt::format("{}: {} of type {}: adding up takes time that depends on it; run "
                    "with -d half or -d bfloat16",
                    first.file, request.op, first.dtype));
  }
}

// What leaves a GPU in NCCL's all-reduce may be less than its bus bandwidth: switches add up, and
// the buffer leaves it once.
void check_line_rate(const NcclTestsImport& request, const ordered_json& device,
                     const std::string& base) {
  constexpr double most_above = 1.05;
  if (!device.contains("nvlink_bytes_per_second")) return;
  const double line = device.at("nvlink_bytes_per_second").at("value").get<double>();
  if (line <= 0) return;
  const bool reduces_all = request.op == "all-reduce";
  for (const NcclTestsRun& run : request.runs) {
    for (const auto& [bytes, time_us] : run.times) {
      const double sent = reduces_all ? bytes : bytes * (run.gpus - 1) / run.gpus;
      const double rate = sent / time_us * 1e6;
      if (rate <= most_above * line) continue;
      throw UsageError(fmt::format(
          "{}: {} {:.4g} GB/s at {:.0f} bytes, {:.2f} times the line rate of NVLink in "
          "--base {}: is it of another GPU, or of a run whose results were not checked?",
          run.file, reduces_all ? "algbw" : "bus bandwidth", rate / 1e9, bytes, rate / line, base));
    }
  }
}

std::vector<Point> points_of(const NcclTestsImport& request) {
  std::vector<Point> points;
  for (const NcclTestsRun& run : request.runs) {
    for (const auto& [bytes, time_us] : run.times) {
      Point point;
      point.op = request.op;
      point.params = {{"pattern", "equal"}, {"gpus", run.gpus}, {"bytes", bytes}};
      point.verify = "passed";
      point.cold = Figures{};
      point.cold->summary = summarise({time_us});
      point.hot = point.cold;
      points.push_back(std::move(point));
    }
  }
  return points;
}

}  // namespace

NcclTestsRun read_nccl_tests(const std::string& file, const std::string& op) {
  const std::vector<profile::NcclTestsRun> runs = profile::read_nccl_tests_log(file);
  if (runs.size() > 1) {
    throw UsageError(
        fmt::format("{}: {} runs: a profile takes one from a file; --cluster takes them all", file,
                    runs.size()));
  }
  const profile::NcclTestsRun& logged = runs.front();
  if (logged.other)
    throw UsageError(profile::left_out(logged) + "; a profile takes one from a file");
  if (logged.hosts > 1) {
    throw UsageError(fmt::format(
        "{}: ranks on {} hosts: a profile holds the exchanges inside one node; import them into a "
        "cluster with --cluster",
        file, logged.hosts));
  }
  const std::string& asked = op.empty() ? logged.operation : op;
  if (!asked.empty()) profile::check_operation(logged, asked);
  NcclTestsRun run{file, logged.device, "", logged.nccl, asked, logged.gpus, {}, logged.doubts};
  for (const profile::NcclTestsRow& row : logged.rows) {
    if (!run.dtype.empty() && run.dtype != row.dtype) {
      throw UsageError(fmt::format("{}: type {} after {}: give one type at a time",
                                   profile::place_of(logged, row), row.dtype, run.dtype));
    }
    run.dtype = row.dtype;
    run.times.emplace_back(row.bytes, row.time_us);
  }
  return run;
}

ordered_json profile_with_nccl_tests(const NcclTestsImport& request) {
  check_alike(request);
  const NcclTestsRun& first = request.runs.front();
  const Document base = Document::load(find_document("hardware", request.base));
  if (base.root().text_or("format", "") != "moesim-profile") {
    throw UsageError(fmt::format("--base {}: expected a profile of hardware", request.base));
  }
  ordered_json profile = ordered_json::parse(base.root().json().dump());
  const std::string device = profile.at("devices").at(0).at("name").get<std::string>();
  const bool same_device = device == first.device;
  if (!same_device && !request.other_gpu) {
    throw UsageError(
        fmt::format("{}: measured on {}, but --base {} is of {}: choose the base of that GPU, or "
                    "give --other-gpu to put these exchanges beside the kernels of another one",
                    first.file, first.device, request.base, device));
  }
  if (same_device) check_line_rate(request, profile.at("devices").at(0), request.base);
  ordered_json prior;
  for (ordered_json& curve : profile.at("curves")) {
    if (curve.at("op") != request.op) continue;
    if (same_device && curve.value("default", false)) prior = curve;
    curve["default"] = false;
  }
  std::erase_if(profile.at("curves").get_ref<ordered_json::array_t&>(), [&](const auto& curve) {
    return curve.at("op") == request.op && curve.at("params").value("nccl", "") == request.nccl;
  });
  std::optional<ordered_json> curve =
      fit_collective(points_of(request), request.op, request.nccl, prior,
                     fmt::format("nccl-tests on {}, imported", first.device));
  if (!curve) {
    throw UsageError(fmt::format("{}: {} sizes: a curve takes at least {}", first.file,
                                 first.times.size(), fewest_sizes));
  }
  go_on_beyond_sizes(profile::Profile::load(request.base), *curve);
  const bool reduces = request.op == "all-reduce" || request.op == "reduce-scatter";
  (*curve)["params"]["dtype"] = reduces ? first.dtype : "any";
  profile.at("curves").push_back(std::move(*curve));
  profile["name"] = request.name;
  profile["tool"]["name"] = "moesim import";
  profile["tool"]["version"] = request.tool_version;
  Document::parse(profile.dump(), request.name)
      .validate(Document::load(find_document("schema", "profile.schema")));
  return profile;
}

}  // namespace moesim::kernels::measure
