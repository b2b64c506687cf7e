#include "sim/routing/groups/balanced_assignment.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

namespace moesim::routing {

namespace {

constexpr std::int64_t unreachable = std::numeric_limits<std::int64_t>::max() / 4;
constexpr double steps_per_unit = 1 << 30;
constexpr double largest_score = 65536;
constexpr std::int64_t impossible = -(std::int64_t{1} << 50);  // of -inf

std::int64_t in_steps(float score) {
  if (score == -std::numeric_limits<float>::infinity()) return impossible;
  return std::llround(std::clamp(static_cast<double>(score), -largest_score, largest_score) *
                      steps_per_unit);
}

}  // namespace

const std::vector<std::uint16_t>& BalancedAssignment::assign(std::span<const float> scores,
                                                             int experts) {
  experts_ = static_cast<std::size_t>(experts);
  tokens_ = static_cast<std::int64_t>(scores.size() / experts_);
  wanted_ = tokens_ / experts;
  assert(wanted_ * experts == tokens_);
  assigned_.resize(static_cast<std::size_t>(tokens_));
  load_.resize(experts_);
  price_.resize(experts_);
  scale(scores);
  price();
  if (is_balanced()) return assigned_;
  list_tokens();
  potential_.assign(experts_, 0);
  while (!is_balanced()) augment();
  return assigned_;
}

void BalancedAssignment::scale(std::span<const float> scores) {
  score_.resize(scores.size());
  std::transform(scores.begin(), scores.end(), score_.begin(), in_steps);
}

bool BalancedAssignment::is_balanced() const {
  return std::all_of(load_.begin(), load_.end(),
                     [this](std::int64_t load) { return load == wanted_; });
}

void BalancedAssignment::choose_best() {
  std::fill(load_.begin(), load_.end(), 0);
  const std::int64_t* row = score_.data();
  for (std::uint16_t& assigned : assigned_) {
    assigned = static_cast<std::uint16_t>(std::max_element(row, row + experts_) - row);
    ++load_[assigned];
    row += experts_;
  }
}

// A price that is the same for all tokens does not change the order of balanced assignments,
// because each expert has the same number of tokens in all of them: any prices are correct, and
// good prices leave few tokens to move. The logarithm of the load is exact for log-popularity plus
// Gumbel noise and too large for thinner tails: half of it is used, and less after a round that
// increased the excess.
void BalancedAssignment::price() {
  constexpr int most_rounds = 24;
  double share = 0.5;
  std::int64_t last = std::numeric_limits<std::int64_t>::max();
  for (int round = 0; round <= most_rounds; ++round) {
    choose_best();
    std::int64_t excess = 0;
    for (const std::int64_t load : load_) excess += std::max<std::int64_t>(0, load - wanted_);
    if (excess <= tokens_ / 256 || round == most_rounds) return;
    if (excess > last - last / 8) share *= 0.7;
    last = excess;
    for (std::size_t expert = 0; expert < experts_; ++expert) {
      const double load = std::max(0.5, static_cast<double>(load_[expert]));
      price_[expert] =
          std::llround(share * std::log(load / static_cast<double>(wanted_)) * steps_per_unit);
    }
    for (std::size_t row = 0; row < score_.size(); row += experts_) {
      for (std::size_t expert = 0; expert < experts_; ++expert)
        score_[row + expert] -= price_[expert];
    }
  }
}

void BalancedAssignment::list_tokens() {
  list_.resize(experts_);
  for (std::vector<std::int32_t>& list : list_) list.clear();
  cheapest_.assign(experts_ * experts_, unreachable);
  mover_.assign(experts_ * experts_, 0);
  for (std::size_t token = 0; token < assigned_.size(); ++token) {
    enter(assigned_[token], static_cast<std::int32_t>(token));
  }
}

void BalancedAssignment::enter(std::size_t expert, std::int32_t token) {
  list_[expert].push_back(token);
  const std::int64_t* row = score_.data() + static_cast<std::size_t>(token) * experts_;
  std::int64_t* cheapest = cheapest_.data() + expert * experts_;
  std::int32_t* mover = mover_.data() + expert * experts_;
  for (std::size_t to = 0; to < experts_; ++to) {
    const std::int64_t cost = to == expert ? unreachable : row[expert] - row[to];
    const bool cheaper = cost < cheapest[to] || (cost == cheapest[to] && token < mover[to]);
    cheapest[to] = cheaper ? cost : cheapest[to];
    mover[to] = cheaper ? token : mover[to];
  }
}

// Few of the best moves to other experts are of this token: only those are searched again.
void BalancedAssignment::leave(std::size_t expert, std::int32_t token) {
  std::vector<std::int32_t>& list = list_[expert];
  *std::find(list.begin(), list.end(), token) = list.back();
  list.pop_back();
  for (std::size_t to = 0; to < experts_; ++to) {
    const std::size_t edge = expert * experts_ + to;
    if (mover_[edge] != token || to == expert) continue;
    cheapest_[edge] = unreachable;
    for (const std::int32_t other : list) {
      const std::int64_t* row = score_.data() + static_cast<std::size_t>(other) * experts_;
      const std::int64_t cost = row[expert] - row[to];
      if (cost > cheapest_[edge] || (cost == cheapest_[edge] && other > mover_[edge])) continue;
      cheapest_[edge] = cost;
      mover_[edge] = other;
    }
  }
}

// Dijkstra's algorithm from all experts with too many tokens at once, on costs made non-negative by
// the previous distances (Johnson). An edge is the cheapest token to move.
void BalancedAssignment::find_distances() {
  distance_.assign(experts_, unreachable);
  before_.assign(experts_, experts_);
  done_.assign(experts_, 0);
  for (std::size_t expert = 0; expert < experts_; ++expert) {
    if (load_[expert] > wanted_) distance_[expert] = -potential_[expert];
  }
  for (std::size_t round = 0; round < experts_; ++round) {
    std::size_t nearest = experts_;
    for (std::size_t expert = 0; expert < experts_; ++expert) {
      if (done_[expert] != 0 || distance_[expert] == unreachable) continue;
      if (nearest == experts_ || distance_[expert] < distance_[nearest]) nearest = expert;
    }
    if (nearest == experts_) break;
    done_[nearest] = 1;
    const std::int64_t* edge = cheapest_.data() + nearest * experts_;
    const std::int64_t so_far = distance_[nearest] + potential_[nearest];
    for (std::size_t to = 0; to < experts_; ++to) {
      if (edge[to] == unreachable || done_[to] != 0) continue;
      const std::int64_t through = so_far + edge[to] - potential_[to];
      if (through >= distance_[to]) continue;
      distance_[to] = through;
      before_[to] = nearest;
    }
  }
  for (std::size_t expert = 0; expert < experts_; ++expert) potential_[expert] += distance_[expert];
}

void BalancedAssignment::augment() {
  find_distances();
  std::size_t last = experts_;
  for (std::size_t expert = 0; expert < experts_; ++expert) {
    if (load_[expert] >= wanted_) continue;
    if (last == experts_ || potential_[expert] < potential_[last]) last = expert;
  }
  std::vector<std::size_t> path{last};
  while (before_[path.back()] != experts_) path.push_back(before_[path.back()]);
  ++load_[path.front()];
  --load_[path.back()];
  for (std::size_t at = 0; at + 1 < path.size(); ++at) {
    const std::int32_t token = mover_[path[at + 1] * experts_ + path[at]];
    leave(path[at + 1], token);
    enter(path[at], token);
    assigned_[static_cast<std::size_t>(token)] = static_cast<std::uint16_t>(path[at]);
  }
}

}  // namespace moesim::routing
