#include "sim/routing/counts/sampled_counts.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "sim/routing/counts/row_sums.hpp"
#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {

namespace {

// The number of draws per tile from which on it is drawn how often each is drawn.
constexpr std::int64_t many_draws = 4;

// A GPU's blocks of a stream.
std::uint64_t first_block(std::uint32_t gpu) { return std::uint64_t{gpu} << 20; }

// Box and Muller, of 16 bits: enough for how often a tile is drawn.
void add_normals(const PhiloxBlock& block, std::vector<double>& normal) {
  for (const std::uint32_t word : block) {
    const double radius = std::sqrt(-2 * std::log(((word & 0xffff) + 0.5) / 65536));
    const double angle = 2 * M_PI * (word >> 16) / 65536;
    normal.push_back(radius * std::cos(angle));
    normal.push_back(radius * std::sin(angle));
  }
}

// Whole numbers as close to `tokens` shares as their sum, tokens * choices, allows.
std::vector<std::int32_t> whole_routes(std::span<const double> shares, std::size_t tokens,
                                       std::size_t choices) {
  std::vector<std::int32_t> whole;
  std::vector<std::pair<double, std::size_t>> rest;
  std::int64_t left = static_cast<std::int64_t>(tokens * choices);
  for (std::size_t expert = 0; expert < shares.size(); ++expert) {
    const double routes = std::min(1.0, shares[expert]) * static_cast<double>(tokens);
    whole.push_back(static_cast<std::int32_t>(routes));
    rest.emplace_back(whole.back() - routes, expert);
    left -= whole.back();
  }
  std::sort(rest.begin(), rest.end());
  const auto most = static_cast<std::int32_t>(tokens);
  for (std::size_t at = 0; left > 0 && at < 4 * rest.size(); ++at) {
    std::int32_t& routes = whole[rest[at % rest.size()].second];
    if (routes == most || shares[rest[at % rest.size()].second] <= 0) continue;
    ++routes;
    --left;
  }
  return whole;
}

}  // namespace

std::int64_t sampled_tokens(int experts, int top_k) {
  constexpr std::uint64_t routes = 512;
  const std::uint64_t tokens =
      routes * static_cast<std::uint64_t>(experts) / static_cast<std::uint64_t>(top_k);
  return static_cast<std::int64_t>(
      std::clamp<std::uint64_t>(std::bit_ceil(tokens), 1 << 13, 1 << 15));
}

SampledCounts::SampledCounts(LayerSample sample, std::span<const double> shares,
                             const ExpertPlaces& places, SimdLevel level)
    : sample_(std::move(sample)),
      places_(places),
      choices_(sample_.expert.size() / sample_.tokens),
      stride_((static_cast<std::size_t>(places.columns()) + row_alignment - 1) / row_alignment *
              row_alignment),
      tiles_(sample_.tokens / tile_tokens),
      sums_(stride_),
      sum_rows_(row_sum_kernels(level).sum_rows) {
  calibrate(shares);
  count_tiles();
}

// Tokens are visited in an order that has the edits everywhere: multiples of an odd number.
void SampledCounts::calibrate(std::span<const double> shares) {
  const std::vector<std::int32_t> wanted = whole_routes(shares, sample_.tokens, choices_);
  over_.assign(shares.size(), 0);
  for (const std::uint16_t expert : sample_.expert) ++over_[expert];
  for (std::size_t expert = 0; expert < over_.size(); ++expert) over_[expert] -= wanted[expert];
  constexpr std::size_t step = 0x9e3779b1;
  if (places_.groups > 1) {
    std::vector<std::int64_t> over(static_cast<std::size_t>(places_.groups), 0);
    const std::size_t per_group = over_.size() / over.size();
    for (std::size_t expert = 0; expert < over_.size(); ++expert) {
      over[expert / per_group] += over_[expert];
    }
    // A route can leave a group that has one too many for one that lacks one.
    const auto can_move = [&] {
      const auto [least, most] = std::minmax_element(over.begin(), over.end());
      return *least < 0 && *most > 0;
    };
    for (std::size_t visit = 0; visit < sample_.tokens && can_move(); ++visit) {
      move_group(visit * step % sample_.tokens, over);
    }
  }
  std::int64_t left = 0;
  for (const std::int32_t over : over_) left += std::max(0, over);
  constexpr int steps = 3;  // inside the expert's group, inside the token's groups, anywhere
  for (int at = 0; at < steps && left > 0; ++at) {
    for (std::size_t visit = 0; visit < sample_.tokens && left > 0; ++visit) {
      const std::size_t token = visit * step % sample_.tokens;
      for (std::size_t choice = choices_; choice-- > 0;) {
        if (over_[sample_.expert[choice * sample_.tokens + token]] <= 0) continue;
        if (replace(token, choice, at)) --left;
      }
    }
  }
}

// Moves all routes of a token from a group with too many to one with too few that it has none in:
// it goes to as many groups as before. `over`: [group] routes beyond its share.
void SampledCounts::move_group(std::size_t token, std::vector<std::int64_t>& over) {
  const std::size_t per_group = over_.size() / over.size();
  routes_.assign(over.size(), 0);
  const auto expert_at = [&](std::size_t choice) -> std::uint16_t& {
    return sample_.expert[choice * sample_.tokens + token];
  };
  for (std::size_t choice = 0; choice < choices_; ++choice) {
    ++routes_[expert_at(choice) / per_group];
  }
  for (std::size_t from = 0; from < over.size(); ++from) {
    if (routes_[from] == 0 || over[from] < routes_[from]) continue;
    for (std::size_t to = 0; to < over.size(); ++to) {
      if (routes_[to] > 0 || over[to] > -routes_[from]) continue;
      for (std::size_t choice = 0; choice < choices_; ++choice) {
        const std::size_t expert = expert_at(choice);
        if (expert / per_group != from) continue;
        const std::size_t instead = to * per_group + expert % per_group;
        --over_[expert];
        ++over_[instead];
        expert_at(choice) = static_cast<std::uint16_t>(instead);
      }
      over[from] -= routes_[from];
      over[to] += routes_[from];
      return;
    }
  }
}

// Gives a token another expert, one that has too few routes.
bool SampledCounts::replace(std::size_t token, std::size_t choice, int step) {
  const auto per_group = static_cast<std::size_t>(places_.experts / places_.groups);
  const auto expert_at = [&](std::size_t at) -> std::uint16_t& {
    return sample_.expert[at * sample_.tokens + token];
  };
  const std::size_t from = expert_at(choice);
  const auto fits = [&](std::size_t expert) {
    if (over_[expert] >= 0) return false;
    bool in_groups = step == 2;
    for (std::size_t at = 0; at < choices_; ++at) {
      if (expert_at(at) == expert) return false;
      in_groups = in_groups || expert_at(at) / per_group == expert / per_group;
    }
    return in_groups;
  };
  const std::size_t first = step == 0 ? from / per_group * per_group : 0;
  const std::size_t among = step == 0 ? per_group : over_.size();
  for (std::size_t at = 1; at < among; ++at) {
    const std::size_t expert = first + (from - first + at) % among;
    if (!fits(expert)) continue;
    ++over_[expert];
    --over_[from];
    expert_at(choice) = static_cast<std::uint16_t>(expert);
    return true;
  }
  return false;
}

void SampledCounts::count_tiles() {
  rows_.assign(tiles_ * stride_, 0);
  std::vector<std::int32_t> counts(stride_);
  for (std::size_t tile = 0; tile < tiles_; ++tile) {
    std::fill(counts.begin(), counts.end(), 0);
    for (std::size_t token = tile * tile_tokens; token < (tile + 1) * tile_tokens; ++token) {
      count_token(token, counts.data());
    }
    std::transform(counts.begin(), counts.end(),
                   rows_.begin() + static_cast<std::ptrdiff_t>(tile * stride_),
                   [](std::int32_t count) { return static_cast<std::uint8_t>(count); });
  }
}

void SampledCounts::count_token(std::size_t token, std::int32_t* counts) {
  const auto per_rank = static_cast<std::size_t>(places_.experts / places_.ranks);
  const auto is_first = [&](std::size_t choice, std::size_t experts_of_place) {
    const std::size_t place = sample_.expert[choice * sample_.tokens + token] / experts_of_place;
    for (std::size_t at = 0; at < choice; ++at) {
      if (sample_.expert[at * sample_.tokens + token] / experts_of_place == place) return false;
    }
    return true;
  };
  const std::size_t per_node = per_rank * static_cast<std::size_t>(places_.ranks_of_node);
  std::int32_t* ranks = counts + places_.experts;
  for (std::size_t choice = 0; choice < choices_; ++choice) {
    const std::size_t expert = sample_.expert[choice * sample_.tokens + token];
    ++counts[expert];
    if (per_node == 0) continue;
    if (is_first(choice, per_rank)) ++ranks[expert / per_rank];
    if (is_first(choice, per_node))
      ++ranks[static_cast<std::size_t>(places_.ranks) + expert / per_node];
  }
}

// Sixteen random bits each: the number of tiles is a power of two.
void SampledCounts::add_tiles(const StreamKey& key, std::uint32_t gpu, std::int64_t tiles) {
  constexpr std::uint64_t picks_of_block = 8;
  picks_.resize((static_cast<std::size_t>(tiles) + picks_of_block - 1) / picks_of_block *
                picks_of_block);
  const auto mask = static_cast<std::uint32_t>(tiles_ - 1);
  for (std::size_t at = 0; at < picks_.size(); at += picks_of_block) {
    const PhiloxBlock block = philox_block(key, first_block(gpu) + at / picks_of_block);
    for (std::size_t word = 0; word < block.size(); ++word) {
      picks_[at + 2 * word] = static_cast<std::uint16_t>(block[word] & mask);
      picks_[at + 2 * word + 1] = static_cast<std::uint16_t>(block[word] >> 16 & mask);
    }
  }
  sum_rows_(rows_.data(), stride_, picks_.data(), static_cast<std::size_t>(tiles), sums_.data());
}

// How often each tile is drawn: a normal variable of the Poisson law's variance, then corrected by
// one each until the sum is right.
void SampledCounts::add_many_tiles(const StreamKey& key, std::uint32_t gpu, std::int64_t tiles) {
  const double mean = static_cast<double>(tiles) / static_cast<double>(tiles_);
  std::vector<std::int64_t> times(tiles_);
  std::vector<double> normal;
  for (std::uint64_t block = first_block(gpu); normal.size() < tiles_; ++block) {
    add_normals(philox_block(key, block), normal);
  }
  const double middle =
      std::accumulate(normal.begin(), normal.end(), 0.0) / static_cast<double>(tiles_);
  std::int64_t left = tiles;
  for (std::size_t tile = 0; tile < tiles_; ++tile) {
    const double wanted = mean + std::sqrt(mean) * (normal[tile] - middle);
    times[tile] = std::max<std::int64_t>(0, std::llround(wanted));
    left -= times[tile];
  }
  for (std::size_t at = gpu; left != 0; ++at) {
    const std::size_t tile = at & (tiles_ - 1);
    const int step = left > 0 ? 1 : -1;
    if (times[tile] + step < 0) continue;
    times[tile] += step;
    left -= step;
  }
  std::fill(sums_.begin(), sums_.end(), 0);
  for (std::size_t tile = 0; tile < tiles_; ++tile) {
    const auto drawn = static_cast<std::int32_t>(times[tile]);
    const std::uint8_t* row = rows_.data() + tile * stride_;
    for (std::size_t column = 0; column < stride_; ++column) sums_[column] += drawn * row[column];
  }
}

void SampledCounts::draw(const StreamKey& key, std::uint32_t gpu, std::int64_t tokens,
                         const Output& out) {
  const std::int64_t tiles = tokens / tile_tokens;
  if (tiles >= many_draws * static_cast<std::int64_t>(tiles_)) {
    add_many_tiles(key, gpu, tiles);
  } else {
    add_tiles(key, gpu, tiles);
  }
  if (const std::int64_t left = tokens % tile_tokens; left > 0) {
    const std::uint32_t tile =
        philox_block(key, first_block(gpu + 1) - 1)[0] & static_cast<std::uint32_t>(tiles_ - 1);
    for (std::int64_t token = 0; token < left; ++token) {
      count_token(std::size_t{tile} * tile_tokens + static_cast<std::size_t>(token), sums_.data());
    }
  }
  const std::int32_t* from = sums_.data();
  const auto copy = [&](int columns, std::int32_t* to) {
    if (to != nullptr) std::copy_n(from, columns, to);
    from += columns;
  };
  copy(places_.experts, out.experts);
  if (places_.ranks_of_node == 0) return;
  copy(places_.ranks, out.to_gpu);
  copy(places_.nodes(), out.to_node);
}

}  // namespace moesim::routing
