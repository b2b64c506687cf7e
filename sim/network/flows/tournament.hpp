#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace moesim::network {

// The least of a fixed number of keys, each of which may change: a binary tree of minima.
class Tournament {
 public:
  static constexpr double never = std::numeric_limits<double>::infinity();

  explicit Tournament(std::size_t players) {
    while (leaves_ < players) leaves_ *= 2;
    least_.assign(2 * leaves_, never);
  }

  double least() const { return least_[1]; }
  double key(std::size_t player) const { return least_[leaves_ + player]; }
  // Without bringing the tree up to date: rise() or rebuild() does.
  void set(std::size_t player, double key) { least_[leaves_ + player] = key; }
  void rise(std::size_t player) {
    for (std::size_t node = (leaves_ + player) / 2; node > 0; node /= 2) {
      const double least = smaller(node);
      if (least_[node] == least) return;
      least_[node] = least;
    }
  }
  void rebuild() {
    for (std::size_t node = leaves_ - 1; node > 0; --node) least_[node] = smaller(node);
  }
  // Whether bringing `changed` players up one by one costs more than the whole tree.
  bool many(std::size_t changed) const { return changed * 4 > leaves_; }

  // Appends the players whose key is at most `limit`.
  template <typename Players>
  void at_most(double limit, Players& players, std::size_t node = 1) const {
    if (!(least_[node] <= limit)) return;
    if (node >= leaves_) {
      players.push_back(static_cast<typename Players::value_type>(node - leaves_));
      return;
    }
    at_most(limit, players, 2 * node);
    at_most(limit, players, 2 * node + 1);
  }

 private:
  double smaller(std::size_t node) const {
    const double left = least_[2 * node];
    const double right = least_[2 * node + 1];
    return right < left ? right : left;
  }

  std::size_t leaves_ = 1;
  std::vector<double> least_;  // [node], the root at 1; the leaves after leaves_
};

}  // namespace moesim::network
