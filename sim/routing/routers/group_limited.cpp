// group-limited: the k best experts of the groups with the highest score, by default their largest
// g (group_limited_greedy of DeepSeek-V2); dropless unless a capacity factor is given.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "sim/routing/groups/chooser.hpp"
#include "sim/routing/groups/tile_chooser.hpp"
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"
#include "sim/routing/tokens/kept_groups.hpp"
#include "sim/routing/tokens/tile_rows.hpp"

namespace moesim::routing {

namespace {

// Groups of neighbouring experts, usually those of a node: the best groups by GroupScore, ties:
// lower group first, then the best experts of these. A token needs only a short list of the best
// experts of each group: the rest uses these lists.
class GroupLimitedChooser final : public Chooser {
 public:
  explicit GroupLimitedChooser(const KindShape& shape)
      : shape_(shape),
        tile_(shape.experts, shape.kernels),
        per_group_(shape.experts / shape.config.groups),
        listed_(static_cast<std::size_t>(std::min(per_group_, std::max(shape.config.top_k, 2)))),
        summed_(std::min<std::size_t>(listed_, summed_scores(shape.config))),
        kept_(shape.config.groups, shape.config.kept_groups, shape.kernels) {
    const auto groups = static_cast<std::size_t>(shape.config.groups);
    const auto choices = static_cast<std::size_t>(shape.config.top_k);
    expert_.resize(groups * listed_ * tile_tokens);
    logit_.grow(groups * listed_);
    best_expert_.resize(choices * tile_tokens);
    best_.grow(choices);
    summands_.grow(groups * summed_);
    offered_.grow(groups * listed_);
  }

  KeepingRules rules(const RouterContext& /*context*/) const override {
    return {shape_.config, shape_.experts};
  }

  void choose(const GroupLogits& logits, const RouterContext& /*context*/, Choices& out) override {
    out.reference_mass.resize(static_cast<std::size_t>(logits.all_tokens()) + tile_tokens);
    float* mass = out.reference_mass.data();
    for (int rank = 0; rank < logits.ranks(); ++rank) {
      out.table.append_chosen(logits.tokens(rank), [&](std::int64_t token, const ChoiceOutput& to) {
        logits.fill_unchecked(rank, token, tile_.tile());
        list_experts();
        find_softmax(mass + token);
        const std::int64_t left = logits.tokens(rank) - token;
        if (!tile_.has_softmax(static_cast<int>(std::min<std::int64_t>(tile_tokens, left)))) {
          logits.fill_tile(rank, token, tile_.tile());
          list_experts();
          find_softmax(mass + token);
        }
        if (shape_.config.has_capacity()) copy_tile(best_.data(), out.table.best_output(token));
        find_groups();
        choose_offered(to);
      });
      mass += logits.tokens(rank);
    }
  }

 private:
  std::size_t row(std::size_t group, std::size_t listed) const {
    return (group * listed_ + listed) * tile_tokens;
  }
  float* summand(std::size_t group, std::size_t listed) {
    return summands_.data() + (group * summed_ + listed) * tile_tokens;
  }
  static void copy_tile(const float* from, float* to) {
    std::memcpy(to, from, tile_tokens * sizeof(float));
  }
  std::size_t choices() const { return static_cast<std::size_t>(shape_.config.top_k); }
  std::size_t groups() const { return static_cast<std::size_t>(shape_.config.groups); }

  void list_experts() {
    shape_.kernels.largest_of_groups(tile_.tile(), shape_.config.groups, per_group_,
                                     static_cast<int>(listed_),
                                     {expert_.data(), logit_.data(), tile_tokens});
  }

  // Also the mass of the k best of all experts, which are in the lists.
  void find_softmax(float* mass) {
    shape_.kernels.largest(logit_.data(), 0, static_cast<int>(groups() * listed_),
                           shape_.config.top_k, {best_expert_.data(), best_.data(), tile_tokens});
    tile_.find_softmax(best_.data());
    tile_.to_probabilities(shape_.config.top_k, {best_expert_.data(), best_.data(), tile_tokens});
    copy_tile(best_.data(), mass);
    for (std::size_t at = tile_tokens; at < choices() * tile_tokens; at += tile_tokens) {
      for (std::size_t place = 0; place < tile_tokens; ++place) mass[place] += best_[at + place];
    }
  }

  // Keeps the groups with the largest logits, and returns whether g orders them in the same way:
  // rounding moves ln g by at most 1e-5 (softmax.hpp) for logits above `deepest`.
  bool find_groups_by_logits() {
    constexpr float margin = 2e-5F;
    constexpr float deepest = -20.0F;  // beside the token's largest logit
    for (std::size_t group = 0; group < groups(); ++group) {
      copy_tile(logit_.data() + row(group, 0), kept_.scores(group));
    }
    kept_.find();
    float least[tile_tokens];
    for (std::size_t place = 0; place < tile_tokens; ++place) {
      least[place] = tile_.maximum()[place] + deepest;
    }
    return kept_.are_apart(margin, least);
  }

  // The first `summed_` of each group's list are added, best first.
  void find_groups() {
    if (shape_.config.group_score == GroupScore::max && find_groups_by_logits()) return;
    for (std::size_t group = 0; group < groups(); ++group) {
      for (std::size_t listed = 0; listed < summed_; ++listed) {
        copy_tile(logit_.data() + row(group, listed), summand(group, listed));
      }
    }
    if (shape_.config.group_score != GroupScore::topk_logits) {
      tile_.to_probabilities(static_cast<int>(groups() * summed_),
                             {expert_.data(), summands_.data(), tile_tokens});
    }
    for (std::size_t group = 0; group < groups(); ++group) {
      float* score = kept_.scores(group);
      copy_tile(summand(group, 0), score);
      for (std::size_t listed = 1; listed < summed_; ++listed) {
        const float* more = summand(group, listed);
        for (std::size_t place = 0; place < tile_tokens; ++place) score[place] += more[place];
      }
    }
    kept_.find();
  }

  // The best of the kept groups' lists: by logit, because different logits may have the same g; the
  // first of equal ones is the lower expert.
  void choose_offered(const ChoiceOutput& to) {
    constexpr float nothing = -std::numeric_limits<float>::infinity();
    const auto bits_of_nothing = std::bit_cast<std::uint32_t>(nothing);
    const std::size_t list = listed_ * tile_tokens;
    for (std::size_t group = 0; group < groups(); ++group) {
      const float* from = logit_.data() + group * list;
      float* offered = offered_.data() + group * list;
      const std::uint32_t* mask = kept_.masks(group);
      std::uint32_t otherwise[tile_tokens];
      for (std::size_t place = 0; place < tile_tokens; ++place) {
        otherwise[place] = bits_of_nothing & ~mask[place];
      }
      for (std::size_t at = 0; at < list; at += tile_tokens) {
        for (std::size_t place = 0; place < tile_tokens; ++place) {
          const auto bits = std::bit_cast<std::uint32_t>(from[at + place]);
          offered[at + place] = std::bit_cast<float>((bits & mask[place]) | otherwise[place]);
        }
      }
    }
    shape_.kernels.largest(offered_.data(), 0, static_cast<int>(groups() * listed_),
                           shape_.config.top_k, to);
    const float* last = to.probability + (choices() - 1) * to.stride;
    std::uint32_t too_few = 0;
    for (std::size_t place = 0; place < tile_tokens; ++place) {
      too_few |= last[place] == nothing ? 1U : 0U;
    }
    if (too_few != 0) {
      merge_lists(to);
    } else {
      for (std::size_t choice = 0; choice < choices(); ++choice) {
        for (std::size_t place = 0; place < tile_tokens; ++place) {
          std::uint16_t& expert = to.expert[choice * to.stride + place];
          expert = expert_[expert * std::size_t{tile_tokens} + place];
        }
      }
    }
    tile_.to_probabilities(shape_.config.top_k, to);
  }

  // The same where a token chooses logits of -inf, which must not be those of a group that it does
  // not keep.
  void merge_lists(const ChoiceOutput& to) const {
    std::vector<std::pair<float, std::uint16_t>> offered;  // the lowest expert first
    for (std::size_t place = 0; place < tile_tokens; ++place) {
      offered.clear();
      for (std::size_t at = 0; at < groups() * listed_; ++at) {
        if (!kept_.keeps(at / listed_, place)) continue;
        offered.emplace_back(logit_[at * tile_tokens + place], expert_[at * tile_tokens + place]);
      }
      std::stable_sort(offered.begin(), offered.end(),
                       [](const auto& one, const auto& other) { return one.first > other.first; });
      offered.resize(choices());  // logits of NaN keep no group: refused later
      for (std::size_t choice = 0; choice < offered.size(); ++choice) {
        to.probability[choice * to.stride + place] = offered[choice].first;
        to.expert[choice * to.stride + place] = offered[choice].second;
      }
    }
  }

  KindShape shape_;
  TileChooser tile_;
  int per_group_;                      // experts
  std::size_t listed_;                 // best experts listed per group
  std::size_t summed_;                 // of these make the score of a group
  std::vector<std::uint16_t> expert_;  // [group, listed, 16], and their logits
  TileRows logit_;
  std::vector<std::uint16_t> best_expert_;  // [choice, 16]: the best of all
  TileRows best_;
  TileRows summands_;  // [group, summed, 16]
  KeptGroups kept_;
  TileRows offered_;  // [group, listed, 16]: the logits of the kept groups, else -inf
};

void read(const RouterReading& in, RouterConfig& config) {
  in.expect(2, 2, "group-limited:GROUPS:KEPT, such as group-limited:8:4");
  config.top_k = in.k_beside();
  in.read_groups(std::span(in.parts).subspan(1), config);
}

std::string name(const RouterConfig& config) {
  return fmt::format("group-limited:{}:{}", config.groups, config.kept_groups);
}

std::unique_ptr<Chooser> make_chooser(const KindShape& shape) {
  return std::make_unique<GroupLimitedChooser>(shape);
}

std::unique_ptr<KindRouter> make(const KindShape& shape) {
  return make_chosen_router(shape, make_chooser(shape));
}

GateWorkList price(const RouterConfig& config, const GateShape& shape) {
  const double grouping = config.groups > 1 ? group_kernels : 0;
  return library_gate(config, shape,
                      gate_kernels + gate_kernels_per_choice * config.choices() + grouping);
}

}  // namespace

constinit const RouterDescriptor group_limited_router{
    .head = "group-limited",
    .form = "group-limited:GROUPS:KEPT",
    .help = "the k best experts of the KEPT best groups, by --group-score",
    .chooses_top_k = true,
    .capacity = CapacityRule::by_factor_if_set,
    .read = read,
    .name = name,
    .make = make,
    .make_chooser = make_chooser,
    .price = price};

}  // namespace moesim::routing
