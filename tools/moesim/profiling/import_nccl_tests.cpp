#include "tools/moesim/profiling/import_nccl_tests.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/measure/documents/nccl_tests.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/base/shipped.hpp"
#include "sim/profile/collective_curve.hpp"
#include "sim/profile/size_curve.hpp"
#include "sim/study/logs/repeated_runs.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/profiling/import_flags.hpp"

namespace moesim::tool {
namespace {

// The version of NCCL that the output names, or else --nccl.
std::string nccl_version(const CommandLine& line,
                         const std::vector<kernels::measure::NcclTestsRun>& runs) {
  std::string version = line.get("nccl");
  for (const kernels::measure::NcclTestsRun& run : runs) {
    if (run.nccl.empty()) continue;
    if (!version.empty() && version != run.nccl) {
      throw UsageError(line.has("nccl")
                           ? fmt::format("--nccl {}: {} is of NCCL {}: leave it out",
                                         line.get("nccl"), run.file, run.nccl)
                           : fmt::format("{} is of NCCL {}, {} of NCCL {}: give one at a time",
                                         runs.front().file, version, run.file, run.nccl));
    }
    version = run.nccl;
  }
  if (version.empty()) {
    return needed_value(line, "nccl",
                        "the version of NCCL, such as 2.27.3, which the output does not say");
  }
  return version;
}

const std::vector<std::string> profiled_operations{"all-to-all", "all-reduce", "all-gather",
                                                   "reduce-scatter"};

// The operation that the output of all runs names.
std::string operation_of(const CommandLine& line,
                         const std::vector<kernels::measure::NcclTestsRun>& runs) {
  const std::string& op = runs.front().op;
  for (const kernels::measure::NcclTestsRun& run : runs) {
    if (run.op.empty()) {
      return needed_value(line, "op",
                          fmt::format("{}: {} does not say which program ran",
                                      fmt::join(profiled_operations, ", "), run.file));
    }
    if (run.op == op) continue;
    throw UsageError(fmt::format("{}: {}, but {} is of {}: give one operation at a time", run.file,
                                 run.op, runs.front().file, op));
  }
  if (std::find(profiled_operations.begin(), profiled_operations.end(), op) !=
      profiled_operations.end()) {
    return op;
  }
  throw UsageError(fmt::format("{}: {}: a profile holds {} alone", runs.front().file, op,
                               fmt::join(profiled_operations, ", ")));
}

// A profile's curve has the errors of its fit alone.
void note_contradictions(const kernels::measure::NcclTestsImport& request) {
  std::map<int, study::RunsBySize> by_gpus;
  for (const kernels::measure::NcclTestsRun& run : request.runs) {
    for (const auto& [bytes, time_us] : run.times) {
      by_gpus[run.gpus][bytes].push_back({time_us, run.file});
    }
  }
  for (const auto& [gpus, runs] : by_gpus) {
    const std::string exchange = fmt::format("{} of {} GPUs", request.op, gpus);
    if (const auto doubt = study::contradiction_of(exchange, runs)) {
      note(*doubt +
           "; the curve lies between them, with a band that need not hold either: import one of "
           "them, or give --cluster instead of --base, whose band holds all of fewer than 20 runs");
    }
  }
}

// Sizes at which a profile's curve, which does not fall, has not the time that was measured.
void note_averages(const kernels::measure::NcclTestsImport& request,
                   const nlohmann::ordered_json& profile) {
  constexpr std::size_t most = 4;
  const nlohmann::ordered_json& curve = profile.at("curves").back();
  for (const auto& branch : curve.at("branches")) {
    const auto measured = branch.find("measured_time_us");
    const bool is_new = !branch.contains("from_curve");
    if (!is_new || measured == branch.end()) continue;
    const profile::SizeCurve knots(branch.at("bytes").get<std::vector<double>>(),
                                   branch.at("time_us").get<std::vector<double>>());
    std::vector<std::string> sizes;
    for (std::size_t size = 0; size < measured->size(); ++size) {
      const auto bytes = branch.at("measured_bytes").at(size).get<double>();
      const double time_us = knots.time_us(bytes);
      const auto was = measured->at(size).get<double>();
      if (std::abs(time_us / was - 1) < profile::apart_from_curve) continue;
      sizes.push_back(fmt::format("{:.0f} bytes {:.2f} us (measured {:.2f})", bytes, time_us, was));
    }
    const std::size_t more = sizes.size() - std::min(sizes.size(), most);
    sizes.resize(sizes.size() - more);
    note(fmt::format(
        "warning: {} of {} GPUs: times that fall with size are averaged: {}{}; bands hold the "
        "measured ones; a cluster (--cluster instead of --base) keeps them",
        request.op, branch.at("gpus").get<int>(), fmt::join(sizes, ", "),
        more == 0 ? "" : fmt::format(", and {} more", more)));
  }
}

}  // namespace

ExitCode import_exchanges(const CommandLine& line) {
  refuse_other_flags(line, "nccl-tests output (.txt, .log, .json of -J)",
                     {"op", "nccl", "base", "other-gpu"});
  namespace measure = kernels::measure;
  measure::NcclTestsImport request;
  const std::string out = needed_value(line, "out", "the file of the new profile");
  request.op = line.get("op");
  if (line.has("op") && std::find(profiled_operations.begin(), profiled_operations.end(),
                                  request.op) == profiled_operations.end()) {
    throw UsageError(fmt::format("--op: unknown value '{}'{}; choose from {}", request.op,
                                 suggestion(request.op, profiled_operations),
                                 fmt::join(profiled_operations, ", ")));
  }
  for (const std::string& file : line.positionals) {
    request.runs.push_back(measure::read_nccl_tests(file, request.op));
  }
  if (request.op.empty()) request.op = operation_of(line, request.runs);
  request.base = needed_value(line, "base", "the profile that has everything else");
  request.name = document_name(line, out);
  request.tool_version = MOESIM_VERSION;
  request.other_gpu = line.has("other-gpu");
  check_writable(out);
  request.nccl = nccl_version(line, request.runs);
  const nlohmann::ordered_json profile = measure::profile_with_nccl_tests(request);
  write_file_atomically(out, json_text(profile, 1) + "\n");
  note_contradictions(request);
  note_averages(request, profile);
  for (const measure::NcclTestsRun& run : request.runs) {
    for (const std::string& doubt : run.doubts) note(doubt);
    note(fmt::format("{}: {} on {} GPUs ({}), {} sizes from {}", out, request.op, run.gpus,
                     run.device, run.times.size(), run.file));
  }
  const measure::NcclTestsRun& first = request.runs.front();
  std::vector<double> bytes;
  for (const auto& [size, time_us] : first.times) bytes.push_back(size);
  note(fmt::format("try: moesim predict --profile {} --op {} --gpus {} --bytes {}",
                   out.find('/') == std::string::npos ? "./" + out : out, request.op, first.gpus,
                   size_to_try(bytes)));
  return ExitCode::ok;
}

}  // namespace moesim::tool
