#include "sim/routing/balanced_assignment.hpp"

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

constexpr auto later = [](const auto& one, const auto& other) {
  return one.cost != other.cost ? one.cost > other.cost : one.token > other.token;
};

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
  scale(scores);
  price();
  if (is_balanced()) return assigned_;
  fill_heaps();
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

// A price that every token pays alike changes no sum of a balanced assignment, for each expert has
// the same number of tokens in all of them: any prices are right, good ones leave few tokens to
// move. Where scores are log-popularity plus Gumbel noise, the logarithm of the load is exact.
void BalancedAssignment::price() {
  constexpr int most_rounds = 8;
  choose_best();
  for (int round = 0; round < most_rounds; ++round) {
    std::int64_t excess = 0;
    for (const std::int64_t load : load_) excess += std::max<std::int64_t>(0, load - wanted_);
    if (excess <= std::max<std::int64_t>(tokens_ / 64, 4)) return;
    for (std::size_t expert = 0; expert < experts_; ++expert) {
      const double ratio =
          std::max(0.5, static_cast<double>(load_[expert])) / static_cast<double>(wanted_);
      const std::int64_t change = std::llround(std::log(ratio) * steps_per_unit);
      for (std::size_t at = expert; at < score_.size(); at += experts_) score_[at] -= change;
    }
    choose_best();
  }
}

void BalancedAssignment::fill_heaps() {
  moves_.resize(experts_ * experts_);
  for (std::vector<Move>& heap : moves_) heap.clear();
  for (std::size_t token = 0; token < assigned_.size(); ++token) {
    const std::int64_t* row = score_.data() + token * experts_;
    const std::size_t from = assigned_[token];
    for (std::size_t to = 0; to < experts_; ++to) {
      if (to == from) continue;
      moves_[from * experts_ + to].push_back(
          {row[from] - row[to], static_cast<std::int32_t>(token)});
    }
  }
  for (std::vector<Move>& heap : moves_) std::make_heap(heap.begin(), heap.end(), later);
  cheapest_.assign(experts_ * experts_, unreachable);
  for (std::size_t expert = 0; expert < experts_; ++expert) refresh(expert);
}

void BalancedAssignment::push_moves(std::int32_t token) {
  const std::int64_t* row = score_.data() + static_cast<std::size_t>(token) * experts_;
  const std::size_t from = assigned_[static_cast<std::size_t>(token)];
  for (std::size_t to = 0; to < experts_; ++to) {
    if (to == from) continue;
    std::vector<Move>& heap = moves_[from * experts_ + to];
    heap.push_back({row[from] - row[to], token});
    std::push_heap(heap.begin(), heap.end(), later);
  }
}

// Tokens that have left are taken off a heap only when they come to its top.
void BalancedAssignment::refresh(std::size_t from) {
  for (std::size_t to = 0; to < experts_; ++to) {
    std::vector<Move>& heap = moves_[from * experts_ + to];
    while (!heap.empty() && assigned_[static_cast<std::size_t>(heap.front().token)] != from) {
      std::pop_heap(heap.begin(), heap.end(), later);
      heap.pop_back();
    }
    cheapest_[from * experts_ + to] = heap.empty() ? unreachable : heap.front().cost;
  }
}

// Dijkstra from all experts with too many tokens at once, on costs made non-negative by the
// distances of the last time (Johnson). An edge is the cheapest token to move.
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
  std::vector<std::int32_t> moved;
  for (std::size_t at = 0; at + 1 < path.size(); ++at) {
    moved.push_back(moves_[path[at + 1] * experts_ + path[at]].front().token);
  }
  for (std::size_t at = 0; at < moved.size(); ++at) {
    assigned_[static_cast<std::size_t>(moved[at])] = static_cast<std::uint16_t>(path[at]);
    push_moves(moved[at]);
  }
  for (const std::size_t expert : path) refresh(expert);
}

}  // namespace moesim::routing
