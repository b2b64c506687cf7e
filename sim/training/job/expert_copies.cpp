#include "sim/training/job/expert_copies.hpp"

#include <algorithm>
#include <numeric>

namespace moesim::training {

ExpertCopies::ExpertCopies(std::span<const double> measured, int ranks, int redundant)
    : copies_(measured.size(), 1), experts_of_(static_cast<std::size_t>(ranks)) {
  const auto rows_of_copy = [&](std::size_t expert) {
    return measured[expert] / static_cast<double>(copies_[expert]);
  };
  for (int copy = 0; copy < redundant; ++copy) {
    std::size_t hottest = 0;
    for (std::size_t expert = 1; expert < copies_.size(); ++expert) {
      if (rows_of_copy(expert) > rows_of_copy(hottest)) hottest = expert;
    }
    ++copies_[hottest];
  }
  std::vector<std::size_t> order;  // an expert once per copy
  for (std::size_t expert = 0; expert < copies_.size(); ++expert) {
    order.insert(order.end(), static_cast<std::size_t>(copies_[expert]), expert);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t one, std::size_t other) {
    return rows_of_copy(one) > rows_of_copy(other);
  });
  const std::size_t slots = order.size() / experts_of_.size();
  std::vector<double> packed(experts_of_.size(), 0);
  for (const std::size_t expert : order) {
    std::size_t best = experts_of_.size();
    for (std::size_t rank = 0; rank < experts_of_.size(); ++rank) {
      if (experts_of_[rank].size() == slots) continue;
      if (best == experts_of_.size() || packed[rank] < packed[best]) best = rank;
    }
    experts_of_[best].push_back(static_cast<int>(expert));
    packed[best] += rows_of_copy(expert);
  }
}

std::vector<double> ExpertCopies::rows_of_slots(std::span<const double> rows) const {
  std::vector<double> found;
  for (const std::vector<int>& experts : experts_of_) {
    for (const int expert : experts) {
      const auto at = static_cast<std::size_t>(expert);
      found.push_back(rows[at] / static_cast<double>(copies_[at]));
    }
  }
  return found;
}

std::vector<double> ExpertCopies::rows_of_ranks(std::span<const double> rows) const {
  const std::vector<double> of_slots = rows_of_slots(rows);
  const auto slots = static_cast<std::ptrdiff_t>(of_slots.size() / experts_of_.size());
  std::vector<double> found;
  for (auto rank = of_slots.begin(); rank != of_slots.end(); rank += slots) {
    found.push_back(std::accumulate(rank, rank + slots, 0.0));
  }
  return found;
}

}  // namespace moesim::training
