#include "sim/routing/tokens/choice_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "sim/base/error.hpp"

namespace moesim::routing {

void ChoiceTable::reset(int experts, int choices, int local_sets, int locals, std::int64_t tokens) {
  experts_ = experts;
  choices_ = choices;
  local_sets_ = local_sets;
  locals_ = locals;
  places_.clear();
  best_probability_.clear();
  holds_best_ = true;
  stride_ = static_cast<std::size_t>(tokens) + tile_tokens;  // for a partial last tile
  rank_begin_.assign(1, 0);
  const auto grow = [](auto& values, std::size_t size) {
    if (values.size() < size) values.resize(size);
  };
  grow(expert_, static_cast<std::size_t>(choices) * stride_);
  grow(probability_, static_cast<std::size_t>(choices) * stride_);
  grow(local_expert_, static_cast<std::size_t>(local_sets * locals) * stride_);
  grow(local_probability_, static_cast<std::size_t>(local_sets * locals) * stride_);
  tile_.grow(static_cast<std::size_t>(experts));
  scratch_.grow(static_cast<std::size_t>(experts));
}

void ChoiceTable::append_logits(std::span<const float> logits, std::int64_t tokens, int rank,
                                std::span<const LocalExperts> local, const TileKernels& kernels) {
  const auto width = static_cast<std::size_t>(experts_);
  std::vector<float> last_rows;
  append_tiles(tokens, rank, local, kernels, [&](std::int64_t token, float* tile) {
    const float* rows = logits.data() + static_cast<std::size_t>(token) * width;
    const auto left = static_cast<std::size_t>(tokens - token);
    if (left < tile_tokens) {
      last_rows.assign(rows, rows + left * width);
      last_rows.resize(tile_tokens * width, 0.0F);
      rows = last_rows.data();
    }
    kernels.transpose(rows, width, experts_, tile);
  });
}

void ChoiceTable::append_choices(std::span<const std::uint16_t> expert,
                                 std::span<const float> probability, int held,
                                 std::int64_t tokens) {
  const auto width = static_cast<std::size_t>(held);
  const std::size_t recorded = expert.size() / width;
  const auto begin = static_cast<std::size_t>(rank_begin_.back());
  for (std::size_t token = 0; token < static_cast<std::size_t>(tokens); ++token) {
    for (std::size_t choice = 0; choice < static_cast<std::size_t>(choices_); ++choice) {
      const std::size_t from = token % recorded * width + choice;
      const std::size_t to = choice * stride_ + begin + token;
      expert_[to] = expert[from];
      probability_[to] = probability.empty() ? 1.0F / static_cast<float>(held) : probability[from];
    }
  }
  rank_begin_.push_back(rank_begin_.back() + tokens);
  holds_best_ = false;  // recorded probabilities may be anything
}

void ChoiceTable::append_tile(std::size_t at, std::int64_t token, int valid, int rank,
                              std::span<const LocalExperts> local, const TileKernels& kernels) {
  const ChoiceOutput out{expert_.data() + at, probability_.data() + at, stride_};
  alignas(64) float maximum[tile_tokens];
  alignas(64) float sum[tile_tokens];
  const auto choose = [&] {
    kernels.largest(tile_.data(), 0, experts_, choices_, out);
    std::memcpy(maximum, out.probability, sizeof maximum);
    kernels.exp_sum(tile_.data(), experts_, maximum, scratch_.data(), sum);
  };
  choose();
  if (std::any_of(sum, sum + valid, [](float value) { return std::isnan(value); })) {
    repair(token, valid, rank, sum);
    choose();
  }
  kernels.probabilities(maximum, sum, choices_, out);
  std::size_t place = at;
  for (const LocalExperts& set : local) {
    if (set.wanted == 0) continue;
    const ChoiceOutput near{local_expert_.data() + place, local_probability_.data() + place,
                            stride_};
    kernels.largest(tile_.data(), set.first, set.last, set.wanted, near);
    kernels.probabilities(maximum, sum, set.wanted, near);
    place += static_cast<std::size_t>(locals_) * stride_;
  }
}

// A NaN sum has one of two causes: a logit without a softmax, which is an error of the caller, or a
// token whose logits are all -inf, which means "no preference".
void ChoiceTable::repair(std::int64_t token, int valid, int rank, const float* sum) {
  for (int place = 0; place < valid; ++place) {
    if (!std::isnan(sum[place])) continue;
    for (int expert = 0; expert < experts_; ++expert) {
      const std::size_t row = static_cast<std::size_t>(expert) * tile_tokens;
      float& logit = tile_.data()[row + static_cast<std::size_t>(place)];
      if (std::isnan(logit) || logit == std::numeric_limits<float>::infinity()) {
        throw UsageError(fmt::format(
            "the logits of rank {}, token {} hold {} at expert {}: a softmax needs finite logits "
            "or -inf; check what wrote them",
            rank, token + place, std::isnan(logit) ? "NaN" : "+inf", expert));
      }
      logit = 0.0F;
    }
  }
}

}  // namespace moesim::routing
