#include "kernels/measure/documents/nccl_tests.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

#include "kernels/measure/fit/fit.hpp"
#include "sim/base/document.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"

namespace moesim::kernels::measure {
namespace {

using nlohmann::ordered_json;

// Columns of a row: size count type redop root time algbw busbw #wrong, then the same in place.
constexpr std::size_t type_at = 2, time_at = 5, wrong_at = 8;
constexpr std::size_t longest_rank_line = 1024;

double number(const std::string& file, std::size_t line, const std::string& text) {
  const std::optional<double> value = parse_number<double>(text);
  if (value && *value >= 0) return *value;
  throw UsageError(fmt::format("{}: line {}: '{}' is not a number", file, line, text));
}

void take_row(const std::string& text, std::size_t line, NcclTestsRun& run) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  if (words.empty() || words[0].find_first_not_of("0123456789") != std::string::npos) return;
  if (words.size() <= wrong_at) {
    throw UsageError(
        fmt::format("{}: line {}: {} columns instead of size, count, type, redop, "
                    "root, time, algbw, busbw, #wrong: the output is cut off",
                    run.file, line, words.size()));
  }
  const double bytes = number(run.file, line, words[0]);
  const double time_us = number(run.file, line, words[time_at]);
  if (words[wrong_at] != "0" && words[wrong_at] != "N/A") {
    throw UsageError(
        fmt::format("{}: line {}: {} wrong values: this run measured nothing that "
                    "counts",
                    run.file, line, words[wrong_at]));
  }
  if (!run.dtype.empty() && run.dtype != words[type_at]) {
    throw UsageError(fmt::format("{}: line {}: type {} after {}: give one type at a time", run.file,
                                 line, words[type_at], run.dtype));
  }
  run.dtype = words[type_at];
  if (bytes > 0 && time_us > 0) run.times.emplace_back(bytes, time_us);
}

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

NcclTestsRun read_nccl_tests(const std::string& file) {
  NcclTestsRun run;
  run.file = file;
  // "#  Rank  0 Group  0 Pid  12345 on  host device  0 [0x07] NVIDIA H200"
  static const std::regex rank(
      R"(^#\s*Rank\s+\d+ .* on\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s+(.*\S)\s*$)");
  std::set<std::string> hosts, devices;
  std::istringstream text(read_file(file));
  std::size_t number_of_line = 0;
  for (std::string line; std::getline(text, line);) {
    ++number_of_line;
    std::smatch match;
    // std::regex recurses by the character: a line of megabytes would be the end of the stack.
    if (line.size() <= longest_rank_line && std::regex_match(line, match, rank)) {
      ++run.gpus;
      hosts.insert(match[1]);
      devices.insert(match[2]);
    } else if (!line.starts_with('#')) {
      take_row(line, number_of_line, run);
    }
  }
  if (run.gpus < 2 || run.times.empty()) {
    throw UsageError(
        fmt::format("{}: {} '# Rank' lines and {} rows of times: this is no output of "
                    "nccl-tests on 2 or more GPUs",
                    file, run.gpus, run.times.size()));
  }
  if (hosts.size() > 1) {
    throw UsageError(
        fmt::format("{}: ranks on {} hosts: a profile holds the exchanges inside one "
                    "node",
                    file, hosts.size()));
  }
  if (devices.size() > 1) throw UsageError(fmt::format("{}: different GPUs in one run", file));
  run.device = *devices.begin();
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
  const bool same_device = profile.at("devices").at(0).at("name") == first.device;
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
