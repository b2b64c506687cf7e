#include "sim/network/exchange/exchange_query.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/network/exchange/collective_exchange.hpp"
#include "sim/network/exchange/exchange_model.hpp"
#include "sim/network/schedules/exchange_schedule.hpp"
#include "sim/network/topology/cluster_topology.hpp"

namespace moesim::network {
namespace {

using profile::Collective;

constexpr const char* two_level = "two-level";
// Ranks whose uniform exchange is simulated message by message: a matrix of 128 MiB, and rings of
// 2 N^2 messages.
constexpr int most_uniform_ranks = 4096;
constexpr int most_ring_ranks = 1024;

const char* op_of(const ExchangeQuery& query) { return name_of(query.collective); }

void check_ranks(const ExchangeQuery& query) {
  if (query.members.size() > 1) return;
  throw NoAnswer(fmt::format("{} among 1 GPU: one rank is a copy on the device, not communication",
                             op_of(query)));
}

void check_size(const ExchangeQuery& query, int most) {
  const auto ranks = static_cast<int>(query.members.size());
  if (ranks <= most) return;
  throw NoAnswer(fmt::format(
      "{}: {} GPUs are more than the {} whose messages are simulated one by one: give a --profile, "
      "and no schedule, for the bound of its ports",
      op_of(query), ranks, most));
}

// What would take hours is refused at once.
void check_schedule(const ExchangeQuery& query, const ExchangeSchedule& schedule) {
  if (query.distinct_share && !schedule.takes_distinct_share) {
    throw UsageError(fmt::format("{}: distinct-share goes with schedule deepep", op_of(query)));
  }
  if (query.network == Method::fast && schedule.bounded) return;
  const auto ranks = static_cast<int>(query.members.size());
  if (ranks <= schedule.most_ranks) return;
  throw NoAnswer(fmt::format(
      "{}: schedule {} among {} ranks: up to {} are simulated message by message: choose {}",
      op_of(query), schedule.name, ranks, schedule.most_ranks,
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

// Whether the profile's curves and the NICs' bandwidth answer, which is usual with a profile: not
// where another schedule is asked for, or a network, of which there is none to choose here.
bool is_two_level(const ExchangeQuery& query, bool has_profile) {
  const bool automatic = query.network == Method::automatic;
  if (query.schedule != two_level) return has_profile && query.schedule.empty() && automatic;
  if (!has_profile) {
    throw UsageError(fmt::format(
        "{}: schedule two-level takes the curves of a profile: give --profile", op_of(query)));
  }
  if (!automatic) {
    throw UsageError(fmt::format(
        "{}: schedule two-level is no simulation: leave network {} out, or choose another "
        "schedule",
        op_of(query), name_of(query.network)));
  }
  return true;
}

// What is simulated in picoseconds prints as such: the doubles nearest to numbers of microseconds
// with six decimals.
double whole_picoseconds(double us) { return std::round(us * 1e6) / 1e6; }

ExchangePrediction in_whole_picoseconds(ExchangePrediction prediction) {
  profile::Estimate& estimate = prediction.estimate;
  for (double* us : {&estimate.time_us, &estimate.time_us_p05, &estimate.time_us_p95}) {
    *us = whole_picoseconds(*us);
  }
  for (double& finish : prediction.rank_finish_us) finish = whole_picoseconds(finish);
  return prediction;
}

ExchangePrediction from_answer(ExchangeAnswer answer, std::string schedule) {
  if (answer.upper_us > answer.lower_us * (1 + 1e-8)) {
    answer.provenance += fmt::format(", certain to be between {:.3f} and {:.3f} us",
                                     answer.lower_us, answer.upper_us);
    answer.estimate.time_us_p95 = std::max(answer.estimate.time_us_p95, answer.upper_us);
  } else {
    answer.lower_us = answer.upper_us = 0;
  }
  return in_whole_picoseconds({answer.estimate, std::move(answer.rank_finish_us),
                               std::move(answer.provenance), answer.lower_us, answer.upper_us,
                               std::move(schedule)});
}

ExchangePrediction two_level_prediction(const ExchangeQuery& query, const ExchangeModel& model,
                                        const cluster::Cluster& cluster) {
  ExchangePrediction prediction;
  prediction.estimate = model.price(query.collective, query.members, query.bytes);
  prediction.rank_finish_us.assign(query.members.size(), prediction.estimate.time_us);
  prediction.provenance =
      fmt::format("{}; cluster {}", profile::describe(prediction.estimate), cluster.name);
  prediction.provenance += model.basis(query.collective, query.members, query.bytes);
  if (span_of(query.members, cluster).domains > 1) prediction.schedule = two_level;
  return prediction;
}

CollectiveAlgorithm parse_algorithm(const ExchangeQuery& query, const std::string& text) {
  const bool reduces = query.collective == Collective::all_reduce;
  if (text == "ring") return CollectiveAlgorithm::ring;
  if (text == "tree" && reduces) return CollectiveAlgorithm::tree;
  throw UsageError(fmt::format("{}: schedule '{}' is not known: choose {}", op_of(query), text,
                               reduces ? "two-level, ring, tree" : "two-level, ring"));
}

// Rings and trees on the links of the document alone, at the ends of their error bars too.
ExchangePrediction simulated_collective(const ExchangeQuery& query,
                                        const cluster::Cluster& cluster) {
  if (query.network == Method::fast) {
    throw UsageError(fmt::format(
        "{}: network fast: rings and trees are simulated message by message: leave it out",
        op_of(query)));
  }
  check_size(query, most_ring_ranks);
  ExchangePrediction prediction;
  prediction.schedule = query.schedule.empty() ? "ring" : query.schedule;
  const CollectiveAlgorithm algorithm = parse_algorithm(query, prediction.schedule);
  const auto at = [&](LinkRate rate) {
    return simulate_collective(topology_of(cluster, query.members, rate), query.collective,
                               std::llround(query.bytes), {}, algorithm);
  };
  const ExchangeTimes median = at(LinkRate::median);
  const double time = median.makespan.us();
  const double fast = at(LinkRate::high).makespan.us();
  const double slow = at(LinkRate::low).makespan.us();
  prediction.estimate = {time, std::min(time, fast), std::max(time, slow), profile::Origin::assumed,
                         profile::Support::interpolated};
  for (const Picoseconds finish : median.rank_finish) {
    prediction.rank_finish_us.push_back(finish.us());
  }
  prediction.provenance = fmt::format("assumed; cluster {}; {}", cluster.name,
                                      algorithm == CollectiveAlgorithm::ring ? "rings" : "trees");
  return in_whole_picoseconds(std::move(prediction));
}

ExchangeSettings settings_of(const ExchangeQuery& query) {
  ExchangeSettings settings;
  settings.method = query.network;
  // Exact, but for the rounding of picoseconds.
  settings.tolerance = 1e-8;
  settings.distinct_share = query.distinct_share.value_or(1);
  settings.progress = query.progress;
  return settings;
}

}  // namespace

ExchangePrediction predict_exchange(const ExchangeQuery& query,
                                    std::shared_ptr<const profile::Profile> profile,
                                    const std::shared_ptr<const cluster::Cluster>& cluster) {
  check_ranks(query);
  const bool has_profile = profile != nullptr;
  const ExchangeModel model(std::move(profile), cluster, settings_of(query));
  if (!query.matrix) {
    if (is_two_level(query, has_profile)) return two_level_prediction(query, model, *cluster);
    if (query.collective != Collective::all_to_all) return simulated_collective(query, *cluster);
    check_size(query, most_uniform_ranks);
  }
  const std::string name = query.schedule.empty() ? "burst" : query.schedule;
  std::vector<std::string> others;
  if (!query.matrix) others.emplace_back(two_level);
  const ExchangeSchedule& schedule = find_schedule(name, std::move(others));
  check_schedule(query, schedule);
  const auto ranks = static_cast<int>(query.members.size());
  std::vector<Picoseconds> start = query.start;
  if (start.empty()) start.resize(query.members.size());
  return from_answer(
      model.exchange(query.members,
                     query.matrix ? *query.matrix : uniform_matrix(ranks, query.bytes), start,
                     schedule),
      name);
}

}  // namespace moesim::network
