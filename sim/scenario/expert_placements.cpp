#include "sim/scenario/expert_placements.hpp"

#include <fmt/format.h>

#include <map>

#include "sim/base/error.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/cluster/expert_placement.hpp"
#include "sim/routing/scores/score_source.hpp"

namespace moesim::scenario {
namespace {

using Order = std::vector<std::uint16_t>;

constexpr const char* flag = "--expert-placement";
constexpr std::string_view balanced = "balanced:";

std::string flagged(const std::string& text) { return fmt::format("{} '{}'", flag, text); }

// [place]: rank by rank, a rank's experts by number.
Order order_of(const cluster::ExpertPlacement& placement) {
  std::vector<Order> held(static_cast<std::size_t>(placement.ranks));
  for (std::size_t expert = 0; expert < placement.rank_of.size(); ++expert) {
    held[static_cast<std::size_t>(placement.rank_of[expert])].push_back(
        static_cast<std::uint16_t>(expert));
  }
  Order order;
  for (const Order& own : held) order.insert(order.end(), own.begin(), own.end());
  return order;
}

// The counts of "balanced:FILE"; errors name what was typed.
routing::ScoreSource counts_of(const std::string& text) {
  const std::string file = text.substr(balanced.size());
  if (file.empty()) {
    throw UsageError(
        fmt::format("{}: name a CSV of layer, expert, count behind the colon", flagged(text)));
  }
  try {
    return routing::load_counted_scores(file);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}; balanced:FILE takes a CSV of layer, expert, count",
                                 flagged(text), error.what()));
  }
}

std::vector<Order> balance(const std::string& text, int experts, int ranks) {
  const routing::ScoreSource source = counts_of(text);
  std::vector<Order> layers;
  for (const std::vector<double>& loads : source.popularity->layers()) {
    if (loads.size() != static_cast<std::size_t>(experts)) {
      throw UsageError(fmt::format("{}: it counts {} experts, the job has {}", flagged(text),
                                   loads.size(), experts));
    }
    layers.push_back(order_of(cluster::balanced_experts(loads, ranks)));
  }
  return layers;
}

cluster::ExpertPlacement read_layer(const std::string& text, std::int64_t layer,
                                    const std::map<std::int64_t, int>& rank_of, int experts,
                                    int ranks) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("{}, layer {}: {}", flagged(text), layer, why));
  };
  cluster::ExpertPlacement placement{ranks, {}};
  for (int expert = 0; expert < experts; ++expert) {
    const auto found = rank_of.find(expert);
    if (found == rank_of.end()) refuse(fmt::format("expert {} of {} is missing", expert, experts));
    placement.rank_of.push_back(found->second);
  }
  const std::vector<int> slots = placement.slots();
  for (int rank = 0; rank < ranks; ++rank) {
    const int held = slots[static_cast<std::size_t>(rank)];
    if (held == experts / ranks) continue;
    refuse(fmt::format("rank {} has {} experts: every rank of --expert-parallel {} has {} of {}",
                       rank, held, ranks, experts / ranks, experts));
  }
  return placement;
}

std::vector<Order> read(const std::string& text, int experts, int ranks) {
  const CsvTable table = CsvTable::load(text);
  const std::size_t expert_at = table.column("expert");
  const std::size_t rank_at = table.column("rank");
  const std::size_t layer_at = table.find("layer");
  std::map<std::int64_t, std::map<std::int64_t, int>> layers;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const std::int64_t layer = layer_at == CsvTable::npos ? 0 : table.whole(row, layer_at, 65535);
    const std::int64_t expert = table.whole(row, expert_at, experts - 1);
    const auto rank = static_cast<int>(table.whole(row, rank_at, ranks - 1));
    if (layers[layer].emplace(expert, rank).second) continue;
    throw UsageError(
        fmt::format("{}, line {}: layer {}, expert {} is there twice: replicas of an "
                    "expert are not simulated",
                    table.name, table.lines[row], layer, expert));
  }
  std::vector<Order> orders;
  for (const auto& [layer, rank_of] : layers) {
    orders.push_back(order_of(read_layer(text, layer, rank_of, experts, ranks)));
  }
  return orders;
}

}  // namespace

std::shared_ptr<const routing::ExpertPlacement> parse_expert_placement(const std::string& text,
                                                                       int experts, int ranks) {
  if (text == "contiguous") return nullptr;
  std::vector<Order> layers;
  if (ranks < 1 || experts % ranks != 0) return nullptr;  // refused with better words elsewhere
  if (text == "round-robin") {
    layers.push_back(order_of(cluster::round_robin_experts(experts, ranks)));
  } else if (text.starts_with(balanced)) {
    layers = balance(text, experts, ranks);
  } else {
    layers = read(text, experts, ranks);
  }
  return std::make_shared<const routing::ExpertPlacement>(std::move(layers), flagged(text));
}

void check_expert_placement(const std::string& text) {
  if (text == "contiguous" || text == "round-robin") return;
  if (text.starts_with(balanced)) {
    counts_of(text);
    return;
  }
  if (text == "balanced") {
    throw UsageError(fmt::format("{}: name a CSV of layer, expert, count behind it: balanced:FILE",
                                 flagged(text)));
  }
  try {
    CsvTable::load(text).column("rank");
  } catch (const UsageError& error) {
    throw UsageError(
        fmt::format("{}: {}; choose contiguous, round-robin, balanced:FILE or a CSV "
                    "of expert, rank",
                    flagged(text), error.what()));
  }
}

}  // namespace moesim::scenario
