#include "tools/moesim/predict_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/enum_names.hpp"
#include "sim/base/error.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/base/units.hpp"
#include "sim/cluster/rank_placement.hpp"
#include "sim/network/exchange/collective_exchange.hpp"
#include "sim/network/exchange/exchange.hpp"
#include "sim/network/exchange/exchange_files.hpp"
#include "sim/network/exchange/exchange_model.hpp"
#include "sim/network/topology/cluster_topology.hpp"
#include "tools/moesim/progress.hpp"

namespace moesim::tool {
namespace {

using network::LinkRate;
using profile::Collective;
using Params = std::map<std::string, std::string>;

// Ranks whose uniform exchange is simulated message by message: a matrix of 128 MiB, and rings of
// 2 N^2 messages.
constexpr int most_uniform_ranks = 4096;
constexpr int most_ring_ranks = 1024;
// GPUs on a cluster without an end, to which placements are held.
constexpr int most_gpus = 1 << 20;

std::optional<Collective> collective_of(const std::string& op) {
  for (const auto& known : profile::collective_names) {
    if (op == known.name) return known.value;
  }
  return std::nullopt;
}

std::string text_or(const Params& params, const std::string& name, const std::string& fallback) {
  const auto found = params.find(name);
  return found == params.end() ? fallback : found->second;
}

int ranks_of(const std::string& op, const Params& params) {
  const auto found = params.find("gpus");
  if (found == params.end()) {
    throw UsageError(
        fmt::format("{}: gpus is missing; it needs gpus and bytes, or a matrix on a cluster", op));
  }
  return static_cast<int>(
      parse_whole(op + ": gpus", found->second, 1, std::numeric_limits<std::int32_t>::max()));
}

double bytes_of(const std::string& op, const Params& params) {
  const auto found = params.find("bytes");
  if (found == params.end()) {
    throw UsageError(fmt::format("{}: bytes is missing; it needs gpus and bytes, or a matrix", op));
  }
  return static_cast<double>(parse_bytes(found->second, op + ": bytes").count);
}

// Which parameters go together.
void check_together(const std::string& op, const Params& params) {
  const auto refuse = [&](const std::string& name, const std::string& reason) {
    if (params.count(name) != 0) throw UsageError(fmt::format("{}: {}: {}", op, name, reason));
  };
  refuse("nccl", "the versions are of curves inside a node: leave it out on a cluster");
  if (params.count("matrix") != 0) {
    if (op != "all-to-all") refuse("matrix", "a byte matrix describes an all-to-all");
    refuse("bytes", "the matrix says what is sent: leave bytes out");
    if (params.count("cluster") == 0) {
      throw UsageError(
          fmt::format("{}: matrix: say on which cluster: give cluster a NAME or FILE", op));
    }
  } else {
    refuse("start", "start times go with a matrix");
  }
}

void check_size(const std::string& op, int ranks, int most) {
  if (ranks <= most) return;
  throw UsageError(fmt::format(
      "{}: {} GPUs are more than the {} whose messages are simulated one by one: give a --profile, "
      "and no schedule, for the bound of its ports",
      op, ranks, most));
}

// What would take hours is refused at once.
void check_schedule(const std::string& op, int ranks, const network::ExchangeSchedule& schedule,
                    network::Method method) {
  if (method == network::Method::fast && schedule.bounded) return;
  if (ranks <= schedule.most_ranks) return;
  throw UsageError(fmt::format(
      "{}: schedule {} among {} ranks: up to {} are simulated message by message: choose {}", op,
      schedule.name, ranks, schedule.most_ranks,
      schedule.bounded ? "--network fast"
                       : "--schedule burst, or --schedule burst --network fast"));
}

// The buffer cut into equal blocks, as nccl-tests does.
ByteMatrix uniform_matrix(int ranks, double bytes) {
  const auto block = std::max<std::int64_t>(1, std::llround(bytes / ranks));
  ByteMatrix matrix(ranks);
  for (int source = 0; source < ranks; ++source) {
    std::fill_n(matrix.row(source), ranks, block);
  }
  return matrix;
}

network::CollectiveAlgorithm parse_algorithm(const std::string& op, const std::string& text) {
  if (text == "ring") return network::CollectiveAlgorithm::ring;
  if (text == "tree" && op == "all-reduce") return network::CollectiveAlgorithm::tree;
  throw UsageError(fmt::format("{}: schedule '{}' is not known: choose {}", op, text,
                               op == "all-reduce" ? "two-level, ring, tree" : "two-level, ring"));
}

// What is simulated in picoseconds prints as such: the doubles nearest to numbers of microseconds
// with six decimals.
double whole_picoseconds(double us) { return std::round(us * 1e6) / 1e6; }

ExchangeTime in_whole_picoseconds(ExchangeTime time) {
  profile::Estimate& estimate = time.estimate;
  for (double* us : {&estimate.time_us, &estimate.time_us_p05, &estimate.time_us_p95}) {
    *us = whole_picoseconds(*us);
  }
  for (double& finish : time.rank_finish_us) finish = whole_picoseconds(finish);
  return time;
}

ExchangeTime from_answer(network::ExchangeAnswer answer) {
  if (answer.upper_us > answer.lower_us * (1 + 1e-8)) {
    answer.provenance += fmt::format(", certain to be between {:.3f} and {:.3f} us",
                                     answer.lower_us, answer.upper_us);
    answer.estimate.time_us_p95 = std::max(answer.estimate.time_us_p95, answer.upper_us);
  } else {
    answer.lower_us = answer.upper_us = 0;
  }
  return in_whole_picoseconds({answer.estimate, std::move(answer.rank_finish_us),
                               std::move(answer.provenance), answer.lower_us, answer.upper_us});
}

// Rings and trees on the links of the document alone, at the ends of their error bars too.
ExchangeTime simulated(const cluster::Cluster& cluster, std::span<const int> members,
                       Collective kind, double bytes, network::CollectiveAlgorithm algorithm) {
  const auto at = [&](LinkRate rate) {
    return network::simulate_collective(network::topology_of(cluster, members, rate), kind,
                                        std::llround(bytes), {}, algorithm);
  };
  const network::ExchangeTimes median = at(LinkRate::median);
  const double time = median.makespan.us();
  const double fast = at(LinkRate::high).makespan.us();
  const double slow = at(LinkRate::low).makespan.us();
  ExchangeTime result;
  result.estimate = {time, std::min(time, fast), std::max(time, slow), profile::Origin::assumed,
                     profile::Support::interpolated};
  for (const Picoseconds finish : median.rank_finish) result.rank_finish_us.push_back(finish.us());
  result.provenance =
      fmt::format("assumed; cluster {}; {}", cluster.name,
                  algorithm == network::CollectiveAlgorithm::ring ? "rings" : "trees");
  return in_whole_picoseconds(std::move(result));
}

double parse_share(const std::string& text) {
  const std::optional<double> share = parse_number<double>(text);
  if (share && *share > 0 && *share <= 1) return *share;
  throw UsageError(fmt::format("distinct-share '{}': expected a number above 0, at most 1", text));
}

// Steps of a simulation on stderr, once it has taken a while.
std::function<void(std::size_t, std::size_t)> progress_on(ProgressLine& line) {
  using Clock = std::chrono::steady_clock;
  return [&line, begin = Clock::now()](std::size_t ended, std::size_t steps) {
    constexpr std::chrono::seconds patience{2};
    if (Clock::now() - begin >= patience) line.show(ended, steps);
  };
}

network::ExchangeSettings settings_of(const Params& params) {
  network::ExchangeSettings settings;
  settings.method = value_in(network::method_names, text_or(params, "network", "auto"), "network");
  // One question is worth the exact answer: `auto` takes the port bound only where it is proven
  // exact, but for the rounding of picoseconds.
  settings.tolerance = 1e-8;
  if (const auto share = params.find("distinct-share"); share != params.end()) {
    settings.distinct_share = parse_share(share->second);
  }
  return settings;
}

void check_ranks(const std::string& op, int ranks) {
  if (ranks > 1) return;
  throw UsageError(
      fmt::format("{} among 1 GPU: one rank is a copy on the device, not communication", op));
}

// Whether the profile's curves and the NICs' bandwidth answer, which is usual with a profile: not
// where another schedule is asked for, or a network, of which there is none to choose here.
constexpr const char* two_level = "two-level";
bool is_two_level(const std::string& op, const Params& params, bool has_profile) {
  const std::string schedule = text_or(params, "schedule", "");
  const std::string method = text_or(params, "network", "auto");
  if (schedule != two_level) return has_profile && schedule.empty() && method == "auto";
  if (!has_profile) {
    throw UsageError(
        fmt::format("{}: schedule two-level takes the curves of a profile: give --profile", op));
  }
  if (method != "auto") {
    throw UsageError(fmt::format(
        "{}: schedule two-level is no simulation: leave network {} out, or choose another "
        "schedule",
        op, method));
  }
  return true;
}

// Says which file's ranks found no place.
std::vector<int> placed(const cluster::Cluster& cluster, const Params& params, int ranks) {
  const std::string text = text_or(params, "placement", "contiguous");
  try {
    std::vector<int> members = cluster::parse_placement(text, cluster, ranks, "placement");
    const int last = *std::max_element(members.begin(), members.end());
    if (last >= most_gpus) {
      throw UsageError(fmt::format("placement: GPU {} is beyond the {} that a cluster may have",
                                   last, most_gpus));
    }
    return members;
  } catch (const UsageError& error) {
    const auto matrix = params.find("matrix");
    if (matrix == params.end()) throw;
    throw UsageError(fmt::format("{}: {} ranks: {}", matrix->second, ranks, error.what()));
  }
}

}  // namespace

const std::vector<std::string>& ExchangePredictor::parameters() {
  static const std::vector<std::string> names{"cluster",   "matrix",  "start",         "schedule",
                                              "placement", "network", "distinct-share"};
  return names;
}

ExchangePredictor::ExchangePredictor(std::shared_ptr<const profile::Profile> profile,
                                     bool calibrates)
    : profile_(std::move(profile)), calibrates_(calibrates) {}

std::shared_ptr<const cluster::Cluster> ExchangePredictor::cluster(const std::string& name) {
  std::shared_ptr<const cluster::Cluster>& entry = clusters_[name];
  if (!entry) entry = std::make_shared<const cluster::Cluster>(cluster::Cluster::load(name));
  return entry;
}

bool ExchangePredictor::handles(const std::string& op, const Params& params) {
  if (!collective_of(op)) return false;
  for (const std::string& name : parameters()) {
    if (params.count(name) != 0) return true;
  }
  const std::string usual = profile_->device().usual_cluster;
  if (usual.empty() || params.count("gpus") == 0) return false;
  return ranks_of(op, params) > cluster(usual)->gpus_per_domain;
}

ExchangeTime ExchangePredictor::answer(const std::string& op, Params& params) {
  check_together(op, params);
  const Collective kind = *collective_of(op);
  const bool chosen = params.count("cluster") != 0;
  if (!chosen) params["cluster"] = profile_->device().usual_cluster;
  if (params["cluster"].empty()) {
    throw UsageError(fmt::format("{}: the profile names no usual cluster: give cluster", op));
  }
  const std::shared_ptr<const cluster::Cluster> where = cluster(params["cluster"]);
  const auto profile = chosen && !calibrates_ ? nullptr : profile_;
  network::ExchangeSettings settings = settings_of(params);
  ProgressLine line("steps of the exchange");
  settings.progress = progress_on(line);
  const network::ExchangeModel model(profile, where, settings);
  const auto simulate = [&](std::span<const int> members, const ByteMatrix& bytes,
                            std::span<const Picoseconds> start) {
    params.emplace("schedule", "burst");
    const network::ExchangeSchedule& schedule = network::find_schedule(params["schedule"]);
    if (params.count("distinct-share") != 0 && !schedule.takes_distinct_share) {
      throw UsageError(fmt::format("{}: distinct-share goes with schedule deepep", op));
    }
    check_schedule(op, bytes.ranks(), schedule, settings.method);
    ExchangeTime time = from_answer(model.exchange(members, bytes, start, schedule));
    line.finish();
    return time;
  };

  if (const auto file = params.find("matrix"); file != params.end()) {
    const ByteMatrix bytes = network::load_byte_matrix(file->second);
    if (params.count("gpus") != 0 && ranks_of(op, params) != bytes.ranks()) {
      throw UsageError(fmt::format("{}: gpus {}: the matrix {} has {} ranks: leave gpus out", op,
                                   params["gpus"], file->second, bytes.ranks()));
    }
    check_ranks(op, bytes.ranks());
    params["gpus"] = std::to_string(bytes.ranks());
    const std::vector<int> members = placed(*where, params, bytes.ranks());
    std::vector<Picoseconds> start(static_cast<std::size_t>(bytes.ranks()));
    if (params.count("start") != 0) {
      start = network::load_start_times(params["start"], bytes.ranks());
    }
    return simulate(members, bytes, start);
  }

  const int ranks = ranks_of(op, params);
  const double bytes = bytes_of(op, params);
  check_ranks(op, ranks);
  const std::vector<int> members = placed(*where, params, ranks);
  if (is_two_level(op, params, profile != nullptr)) {
    const profile::Estimate estimate = model.price(kind, members, bytes);
    std::string provenance =
        fmt::format("{}; cluster {}", profile::describe(estimate), where->name);
    if (network::span_of(members, *where).domains > 1) {
      params["schedule"] = two_level;
      provenance += "; two-level: curve inside a domain, NICs between, at the same time";
      if (kind != Collective::all_to_all) provenance += " (p95: at least one after the other)";
    }
    return {estimate, std::vector<double>(members.size(), estimate.time_us), provenance, 0, 0};
  }
  if (kind != Collective::all_to_all) {
    if (settings.method == network::Method::fast) {
      throw UsageError(fmt::format(
          "{}: network fast: rings and trees are simulated message by message: leave it out", op));
    }
    check_size(op, ranks, most_ring_ranks);
    params.emplace("schedule", "ring");
    return simulated(*where, members, kind, bytes, parse_algorithm(op, params["schedule"]));
  }
  check_size(op, ranks, most_uniform_ranks);
  const std::vector<Picoseconds> start(members.size());
  return simulate(members, uniform_matrix(ranks, bytes), start);
}

}  // namespace moesim::tool
