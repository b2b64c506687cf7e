#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "sim/base/random.hpp"
#include "sim/routing/groups/group_router.hpp"
#include "sim/routing/tokens/softmax.hpp"

// The router once more, as plainly as its rules are written: full sorts, no queues, no tiles.
namespace moesim::routing::naive {

struct Token {
  int rank = 0;
  int index = 0;  // of its rank
  std::vector<float> logits, g;
  std::vector<int> chosen;  // k' experts, best first
  std::vector<int> slot;    // per choice
  std::vector<float> weight;
  int ir_expert = -1;
  float ir_weight = 0;
  std::uint32_t random_key = 0;

  float max_g() const { return *std::max_element(g.begin(), g.end()); }
  int kept() const {
    return static_cast<int>(std::count_if(slot.begin(), slot.end(), [](int s) { return s >= 0; }));
  }
};

inline std::vector<int> best_experts(const std::vector<float>& logits, int first, int last) {
  std::vector<int> order(static_cast<std::size_t>(last - first));
  std::iota(order.begin(), order.end(), first);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  return order;
}

struct Candidate {
  float key = 0;
  std::size_t token = 0;  // place in the group: rank first
  std::size_t choice = 0;
};

// Keeps the best `room` candidates, larger key first, then lower token.
inline std::size_t keep_best(std::vector<Candidate> candidates, std::int64_t room,
                             std::vector<Token>& tokens) {
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.key != b.key ? a.key > b.key : a.token < b.token;
  });
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(room, 0));
  if (candidates.size() > count) candidates.resize(count);
  for (const Candidate& one : candidates) tokens[one.token].slot[one.choice] = 0;  // kept, unplaced
  return candidates.size();
}

// 0 where the caller compares integers, or tokens stand in order.
inline float priority_key(const RouterConfig& config, const Token& token) {
  return config.priority == Priority::token_max ? token.max_g() : 0;
}

class Router {
 public:
  Router(const RouterConfig& config, int experts, const std::vector<std::vector<float>>& logits,
         const RouterContext& context)
      : config_(config), experts_(experts), ranks_(static_cast<int>(logits.size())) {
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto& rows = logits[static_cast<std::size_t>(rank)];
      const int count = static_cast<int>(rows.size()) / experts;
      const StreamKey key{context.seed, Purpose::drop_priority, context.replica, context.layer,
                          static_cast<std::uint32_t>(context.place.first_gpu + rank)};
      for (int index = 0; index < count; ++index) {
        Token token;
        token.rank = rank;
        token.index = index;
        token.logits.assign(rows.begin() + index * experts, rows.begin() + (index + 1) * experts);
        token.g.resize(static_cast<std::size_t>(experts));
        std::vector<float> scratch(token.g.size());
        softmax(token.logits.data(), experts, token.g.data(), scratch.data());
        token.chosen = best_experts(token.logits, 0, experts);
        token.chosen.resize(static_cast<std::size_t>(config.choices()));
        token.slot.assign(token.chosen.size(), slot_failed);
        token.weight.assign(token.chosen.size(), 0.0F);
        token.random_key = philox_block(
            key, static_cast<std::uint64_t>(index / 4))[static_cast<std::size_t>(index % 4)];
        tokens_.push_back(token);
      }
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto& rows = logits[static_cast<std::size_t>(rank)];
      capacity_.push_back(
          config.capacity(static_cast<std::int64_t>(rows.size()) / experts, experts));
    }
    if (config.capacity_scope == CapacityScope::source) {
      for (int rank = 0; rank < ranks_; ++rank) {
        assign(rank, rank + 1, capacity_[static_cast<std::size_t>(rank)]);
      }
    } else {
      assign(0, ranks_, std::accumulate(capacity_.begin(), capacity_.end(), std::int64_t{0}));
    }
    for (Token& token : tokens_) rectify(token, context);
    for (Token& token : tokens_) weigh(token);
  }

  const std::vector<Token>& tokens() const { return tokens_; }
  std::vector<Route> routes() const {
    std::vector<Route> list;
    for (const Token& token : tokens_) {
      for (std::size_t choice = 0; choice < token.chosen.size(); ++choice) {
        list.push_back(
            {token.rank, token.index, static_cast<int>(choice), token.chosen[choice],
             token.slot[choice], token.weight[choice],
             token.g[static_cast<std::size_t>(token.chosen[choice])],
             static_cast<int>(choice) < config_.top_k ? RouteKind::primary : RouteKind::fill});
      }
      if (token.ir_expert < 0) continue;
      list.push_back({token.rank, token.index, config_.choices(), token.ir_expert, slot_ir,
                      token.ir_weight, token.g[static_cast<std::size_t>(token.ir_expert)],
                      RouteKind::ir});
    }
    return list;
  }

 private:
  // The candidates of one expert and choice among the tokens of ranks [first, last).
  std::vector<Candidate> candidates(int first, int last, int expert, int choice, bool by_g) const {
    std::vector<Candidate> list;
    const auto at = static_cast<std::size_t>(choice);
    for (std::size_t place = 0; place < tokens_.size(); ++place) {
      const Token& token = tokens_[place];
      if (token.rank < first || token.rank >= last || token.chosen[at] != expert) continue;
      const float key =
          by_g ? token.g[static_cast<std::size_t>(expert)] : priority_key(config_, token);
      list.push_back({key, place, at});
    }
    if (!by_g && config_.priority == Priority::random) {  // keys of 32 bits do not fit a float
      std::stable_sort(list.begin(), list.end(), [&](const Candidate& a, const Candidate& b) {
        return tokens_[a.token].random_key > tokens_[b.token].random_key;
      });
      for (std::size_t place = 0; place < list.size(); ++place) {
        list[place].key = static_cast<float>(list.size() - place);
      }
    }
    return list;
  }

  void assign(int first, int last, std::int64_t capacity) {
    for (int expert = 0; expert < experts_; ++expert) {
      std::int64_t room = capacity;
      if (config_.has_one_queue()) {
        std::vector<Candidate> all;
        for (int choice = 0; choice < config_.top_k; ++choice) {
          const auto some = candidates(first, last, expert, choice, true);
          all.insert(all.end(), some.begin(), some.end());
        }
        if (config_.priority == Priority::token_order) {
          for (Candidate& one : all) one.key = -static_cast<float>(one.token);
        }
        room -= static_cast<std::int64_t>(keep_best(all, room, tokens_));
      } else {
        for (int choice = 0; choice < config_.top_k; ++choice) {
          room -= static_cast<std::int64_t>(
              keep_best(candidates(first, last, expert, choice, false), room, tokens_));
        }
      }
      if (config_.fill_in) {
        const bool by_g =
            config_.fill_order == FillOrder::nominee_score || config_.sorts_own_queue();
        keep_best(candidates(first, last, expert, config_.top_k, by_g), room, tokens_);
      }
      int next = 0;
      for (int choice = 0; choice < config_.choices(); ++choice) {
        for (Token& token : tokens_) {
          const auto at = static_cast<std::size_t>(choice);
          if (token.rank < first || token.rank >= last || token.chosen[at] != expert) continue;
          if (token.slot[at] >= 0) token.slot[at] = next++;
        }
      }
    }
  }

  void rectify(Token& token, const RouterContext& context) const {
    if (config_.rectification == Rectification::none || token.kept() >= config_.top_k) return;
    std::vector<int> near;
    for (const int expert : best_experts(token.logits, 0, experts_)) {
      const int rank = expert / (experts_ / ranks_);
      const int domain = context.place.gpus_per_domain;
      const bool same_node = domain == 0 || (context.place.first_gpu + rank) / domain ==
                                                (context.place.first_gpu + token.rank) / domain;
      const bool reachable =
          config_.rectification == Rectification::gpu ? rank == token.rank : same_node;
      if (reachable) near.push_back(expert);
    }
    for (const int expert : near) {
      bool taken = false;
      for (std::size_t choice = 0; choice < token.chosen.size(); ++choice) {
        taken = taken || (token.chosen[choice] == expert && token.slot[choice] >= 0);
      }
      if (taken && config_.ir_duplicates == IrDuplicates::exclude) continue;
      token.ir_expert = expert;
      return;
    }
  }

  void weigh(Token& token) const {
    float kept = 0, top = 0;
    for (std::size_t choice = 0; choice < token.chosen.size(); ++choice) {
      const float g = token.g[static_cast<std::size_t>(token.chosen[choice])];
      if (token.slot[choice] >= 0) kept += g;
      if (static_cast<int>(choice) < config_.top_k) top += g;
    }
    const float ir = token.ir_expert < 0 ? 0.0F
                                         : static_cast<float>(config_.top_k - token.kept()) *
                                               token.g[static_cast<std::size_t>(token.ir_expert)];
    const float whole = config_.weights == Weights::kept          ? kept + ir
                        : config_.weights == Weights::before_drop ? top
                                                                  : 1.0F;
    for (std::size_t choice = 0; choice < token.chosen.size(); ++choice) {
      const float g = token.g[static_cast<std::size_t>(token.chosen[choice])];
      token.weight[choice] = token.slot[choice] >= 0 && whole > 0 ? g / whole : 0.0F;
    }
    if (token.ir_expert < 0) return;
    token.ir_weight = whole > 0 ? ir / whole : 0.0F;
    if (token.kept() == 0 && config_.weights == Weights::kept) token.ir_weight = 1.0F;
  }

  RouterConfig config_;
  int experts_ = 0;
  int ranks_ = 0;
  std::vector<Token> tokens_;
  std::vector<std::int64_t> capacity_;
};

// TokenLoss by its definitions, in double precision.
inline TokenLoss loss(const Router& router, const RouterConfig& config, std::int64_t slots) {
  double routes = 0, kept = 0, nominations = 0, filled = 0, partial = 0, unrouted = 0;
  double top_mass = 0, lost_mass = 0, residual = 0, duplicates = 0;
  for (const Token& token : router.tokens()) {
    int primary = 0;
    double top = 0, processed = 0;
    std::map<int, bool> experts;
    for (int choice = 0; choice < config.choices(); ++choice) {
      const auto at = static_cast<std::size_t>(choice);
      const double g = token.g[static_cast<std::size_t>(token.chosen[at])];
      const bool keep = token.slot[at] >= 0;
      if (keep) experts[token.chosen[at]] = true;
      if (choice < config.top_k) {
        routes += 1;
        top += g;
        primary += keep ? 1 : 0;
        lost_mass += keep ? 0 : g;
      } else {
        nominations += 1;
        filled += keep ? 1 : 0;
      }
    }
    if (token.ir_expert >= 0) {
      duplicates += experts.contains(token.ir_expert) ? 1 : 0;
      experts[token.ir_expert] = true;
    }
    for (const auto& [expert, there] : experts)
      processed += token.g[static_cast<std::size_t>(expert)];
    kept += primary;
    partial += primary < config.top_k ? 1 : 0;
    unrouted += experts.empty() ? 1 : 0;
    top_mass += top;
    residual += std::max(0.0, 1 - processed / top);
  }
  const auto tokens = static_cast<double>(router.tokens().size());
  TokenLoss loss;
  loss.failed = (routes - kept) / routes;
  loss.partial = partial / tokens;
  loss.lost_mass = lost_mass / top_mass;
  if (config.fill_in) {
    loss.fill_failed = (nominations - filled) / nominations;
    loss.failed_attempted = (routes + nominations - kept - filled) / (routes + nominations);
  }
  loss.unrouted = unrouted / tokens;
  loss.residual_loss = residual / tokens;
  loss.padded = slots == 0 ? 0 : 1 - (kept + filled) / static_cast<double>(slots);
  if (config.rectification != Rectification::none) loss.duplicate_ir = duplicates / tokens;
  return loss;
}

}  // namespace moesim::routing::naive
