#include "sim/profile/nccl_tests/json_output.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "sim/base/formats/document.hpp"
#include "sim/base/text.hpp"
#include "sim/profile/nccl_tests/doubts.hpp"
#include "sim/profile/nccl_tests/ranks.hpp"

namespace moesim::profile {
namespace {

void check_values(const Node& half) {
  if (half.number_or("nwrong", 0) != 0) {
    half.fail("wrong values: this run measured nothing that counts", "nwrong");
  }
}

double not_negative(const Node& node, const std::string& key) {
  const double value = node.number(key);
  if (!(value >= 0)) node.fail(fmt::format("{:g} is below 0", value), key);
  return value;
}

// Notes doubts about a file of -J. A run that fails leaves one, too, without what follows the
// results.
void doubt_json(const Node& root, NcclTestsRun& run) {
  const Node config = root.at("config");
  const std::string grouping =
      grouping_of(std::to_string(config.count_or("aggregated_iterations", 1)),
                  std::to_string(config.count_or("graph", 0)));
  if (!grouping.empty()) run.doubts.push_back(grouping_doubt(run.file, grouping));
  if (!root.has("out_of_bounds")) {
    run.doubts.push_back(
        fmt::format("warning: {}: no \"out_of_bounds\" after the results: the run failed, and "
                    "larger sizes may be missing",
                    run.file));
  }
  if (!root.has("errors")) return;
  for (const std::string& error : root.texts("errors")) {
    if (error.empty()) continue;
    run.doubts.push_back(
        fmt::format("warning: {}: NCCL's last error: {}", run.file, printable(error)));
  }
}

}  // namespace

NcclTestsRun read_json_output(const std::string& file) {
  const Document document = Document::load(file);
  const Node root = document.root();
  NcclTestsRun run;
  run.file = file;
  if (root.has("args")) {
    const std::vector<std::string> words = root.texts("args");
    if (!words.empty()) run.program = words.front().substr(words.front().find_last_of('/') + 1);
  }
  if (root.has("nccl_version")) {
    run.nccl = nccl_version(root.count("nccl_version"));
  }
  const Node config = root.at("config");
  ListedRanks ranks;
  std::int64_t last_rank = 0;
  for (const Node& device : config.items("devices")) {
    last_rank = std::max(last_rank, device.integer("rank"));
    ranks.add(std::to_string(device.integer("rank")), std::to_string(device.integer_or("group", 0)),
              device.text("hostname"), device.text("device_info"));
  }
  if (ranks.count == 0) config.fail("no GPU", "devices");
  take_ranks(run, ranks);
  run.gpus = ranks.count;
  // A process of several GPUs may list its first one alone: then the ranks are as far apart.
  const std::int64_t threads = config.count_or("nthreads", 1, 1);
  const std::int64_t own = threads * config.count_or("ngpus", 1, 1);
  const bool fits = own <= std::numeric_limits<int>::max() / ranks.count;
  if (fits && last_rank == (ranks.count - 1) * own) run.gpus = static_cast<int>(ranks.count * own);
  if (const auto bounds = root.find("out_of_bounds")) {
    if (const std::int64_t count = bounds->integer_or("count", 0); count != 0) {
      bounds->fail(
          fmt::format("{} values out of bounds: this run measured nothing that counts", count),
          "count");
    }
  }
  for (const Node& node : root.items("results")) {
    if (const auto in_place = node.find("in_place")) check_values(*in_place);
    const auto half = node.find("out_of_place");
    if (!half) continue;
    if (half->has("cpu_time")) half->fail("these are CPU times (-C 1): run without it", "cpu_time");
    check_values(*half);
    const double algorithm = half->number("alg_bw");
    NcclTestsRow row{0,
                     not_negative(node, "size"),
                     node.text("type"),
                     node.text_or("redop", ""),
                     not_negative(*half, "time"),
                     algorithm >= 1 ? half->number("bus_bw") / algorithm : 0};
    doubt_rate(run, fmt::format("{}: {}", file, half->path()), row, algorithm);
    add_row(run, std::move(row));
  }
  doubt_json(root, run);
  return run;
}

}  // namespace moesim::profile
