#include "sim/routing/counts/pilot_tokens.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "sim/routing/jobs/shared_scores.hpp"

namespace moesim::routing {

namespace {

constexpr std::size_t pilot_logits = std::size_t{1} << 20;
constexpr std::size_t least_blocks = 32;
constexpr std::size_t most_blocks = 256;
constexpr double band_routes = 128;  // expected per choice: the sample for a quantile
constexpr std::uint32_t bits_of_one = 0x3f800000;

std::uint32_t bits_of(float probability) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &probability, sizeof bits);
  return bits;
}

// Numbers the routes of each band in the given order, then converts positions to quantiles.
class Places {
 public:
  explicit Places(std::size_t bands) : length_(bands, 0) {}
  const std::vector<std::int32_t>& lengths() const { return length_; }
  float next(std::uint16_t band) { return static_cast<float>(length_[band]++) + 0.5F; }
  float share(float place, std::uint16_t band) const {
    return place / static_cast<float>(length_[band]);
  }

 private:
  std::vector<std::int32_t> length_;
};

}  // namespace

std::size_t PilotTokens::blocks_for(int experts) {
  const std::size_t tokens = pilot_logits / static_cast<std::size_t>(experts);
  return std::clamp(tokens / block_tokens, least_blocks, most_blocks);
}

// Blocks are distributed to the ranks of one group as evenly as possible: IR depends on the rank.
PilotPlan::PilotPlan(std::span<const RoutingJob> jobs) {
  const RoutingJob& first = jobs.front();
  const int ranks = first.expert_parallel;
  experts = first.experts;
  blocks = PilotTokens::blocks_for(experts);
  shown = static_cast<int>(std::min(static_cast<std::size_t>(ranks), blocks));
  for (int index = 0; index < shown; ++index) {
    of_rank.push_back(static_cast<std::uint32_t>(index * ranks / shown));
  }
  std::fill(std::begin(local_set), std::end(local_set), -1);
  for (const RoutingJob& job : jobs) {
    choices = std::max(choices, job.router.choices());
    if (job.router.rectification == Rectification::none) continue;
    int& set = local_set[static_cast<int>(job.router.rectification)];
    if (set < 0) set = sets++;
    locals.resize(static_cast<std::size_t>(sets) * static_cast<std::size_t>(shown));
    for (int index = 0; index < shown; ++index) {
      const LocalExperts wanted = local_experts(job.router, first.experts, ranks,
                                                index * ranks / shown, {0, first.gpus_per_domain});
      LocalExperts& held = locals[place(set, index)];
      if (wanted.wanted > held.wanted) held = wanted;
      places = std::max(places, held.wanted);
    }
  }
}

// How many GPUs a job has, and how many tokens each, is of no effect: the tokens of a rank are its
// first ones, and popularities that differ between GPUs are not drawn by counts.
std::string PilotPlan::key(std::span<const RoutingJob> jobs, const StreamKey& stream) const {
  const RoutingJob& first = jobs.front();
  const LogitShape shape = logit_shape(first);
  std::string text =
      fmt::format("{} {} {} {} {} {} {} {} {} {}", scores_key(shared_scores(jobs)), shape.top_k,
                  experts, first.expert_parallel,
                  first.expert_placement == nullptr ? 0 : first.expert_placement->digest(),
                  stream.seed, stream.replica, stream.layer, choices, places);
  for (const int set : local_set) text += fmt::format(" {}", set);
  for (const LocalExperts& local : locals) {
    text += fmt::format(" {}-{}:{}", local.first, local.last, local.wanted);
  }
  return text;
}

PilotTokens::PilotTokens(PilotPlan plan, const LogitSource& logits, const StreamKey& key,
                         const TileKernels& kernels)
    : kernels_(kernels), plan_(std::move(plan)), tokens_(plan_.blocks * block_tokens) {
  draw_table(logits);
  const auto choices = static_cast<std::size_t>(table_.choices());
  chance_.resize(choices * tokens_);
  const float zero = 0;
  for (std::size_t choice = 0; choice < choices; ++choice) {
    StreamKey of_choice = key;
    of_choice.rank += static_cast<std::uint32_t>(choice);
    const PhiloxWords words = philox_words(of_choice);
    for (std::size_t token = 0; token < tokens_; token += tile_tokens) {
      kernels_.gaussian({words, token}, 1, &zero, chance_.data() + choice * tokens_ + token);
    }
  }
}

void PilotTokens::draw_table(const LogitSource& logits) {
  table_.reset(plan_.experts, plan_.choices, plan_.sets, plan_.places,
               static_cast<std::int64_t>(tokens_));
  for (int index = 0; index < plan_.shown; ++index) {
    const std::uint32_t rank = plan_.of_rank[static_cast<std::size_t>(index)];
    std::vector<LocalExperts> of_rank;
    for (int set = 0; set < plan_.sets; ++set) {
      of_rank.push_back(plan_.locals[plan_.place(set, index)]);
    }
    const auto dealt = [&](int rank_index) {
      return static_cast<std::size_t>(rank_index) * plan_.blocks /
             static_cast<std::size_t>(plan_.shown);
    };
    const std::size_t tokens = (dealt(index + 1) - dealt(index)) * block_tokens;
    table_.append_tiles(static_cast<std::int64_t>(tokens), index, of_rank, kernels_,
                        [&](std::int64_t token, float* tile) {
                          logits.fill_tile(rank, static_cast<std::uint64_t>(token), kernels_, tile);
                        });
  }
}

void PilotTokens::set_popularity(int choices, std::span<const double> popularity) const {
  const std::lock_guard lock(mutex_);
  if (bands_.contains(choices)) return;
  Bands& bands = bands_[choices];
  std::vector<std::size_t> order(popularity.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t one, std::size_t other) {
    return popularity[one] > popularity[other];
  });
  bands.of.assign(popularity.size(), 0);
  bands.count = 1;
  double routes = 0;
  for (const std::size_t expert : order) {
    if (routes >= band_routes * choices) {
      ++bands.count;
      routes = 0;
    }
    routes += popularity[expert] * static_cast<double>(tokens_);
    bands.of[expert] = static_cast<std::uint16_t>(bands.count - 1);
  }
}

const PilotTokens::Quantiles& PilotTokens::quantiles(const RouterConfig& router, int choice) const {
  const std::lock_guard lock(mutex_);
  const bool fill = choice == router.top_k;
  // The shares of a single choice are all 1, and equal keys are ordered by index.
  const bool alike = router.priority == Priority::own_weight && router.top_k == 1;
  const bool own = router.has_one_queue();
  const bool by_rank =
      router.capacity_scope == CapacityScope::group && router.priority != Priority::random;
  Order order = by_rank ? Order::group_index : Order::index;
  if (router.priority == Priority::token_max) order = Order::token_max;
  if (own && !alike) {
    order = router.priority == Priority::own_weight ? Order::own_weight : Order::own_score;
  }
  const bool one_queue = own && !fill && !alike;
  if (fill && (own || router.fill_order == FillOrder::nominee_score)) order = Order::nominee;
  const bool by_score = order != Order::index && order != Order::group_index;
  const Key key{order, by_score ? router.choices() : 0, one_queue ? router.top_k : 0,
                by_score ? choice : 0};
  const auto found = quantiles_.find(key);
  if (found != quantiles_.end()) return found->second;
  if (one_queue) {
    make_own(order, router.choices(), router.top_k);
  } else {
    make_quantiles(key, quantiles_[key]);
  }
  return quantiles_[key];
}

void PilotTokens::make_quantiles(const Key& key, Quantiles& quantiles) const {
  const auto [order, choices, top_k, choice] = key;
  std::vector<float>& quantile = quantiles.of;
  quantile.resize(tokens_);
  if (order == Order::index || order == Order::group_index) {
    // The tokens of a block may be anywhere in the order, or, with tokens ordered by rank, have the
    // position of the block.
    const std::size_t all = order == Order::index ? block_tokens : tokens_;
    for (std::size_t token = 0; token < tokens_; ++token) {
      quantile[token] = (static_cast<float>(token % all) + 0.5F) / static_cast<float>(all);
    }
    return;
  }
  const float* probability =
      order == Order::token_max ? table_.max_probability() : table_.probability(choice);
  std::vector<std::uint32_t> keys(tokens_), sorted(tokens_);
  std::transform(probability, probability + tokens_, keys.begin(), bits_of);
  sort_descending(keys.data(), tokens_, 0, bits_of_one, sorted.data(), scratch_);
  const std::uint16_t* expert = table_.expert(choice);
  const Bands& bands = bands_.at(choices);
  Places places(bands.count);
  for (const std::uint32_t token : sorted) quantile[token] = places.next(bands.of[expert[token]]);
  for (std::size_t token = 0; token < tokens_; ++token) {
    quantile[token] = places.share(quantile[token], bands.of[expert[token]]);
  }
  quantiles.routes = places.lengths();
}

void PilotTokens::make_own(Order order, int choices, int top_k) const {
  const auto width = static_cast<std::size_t>(top_k);
  std::vector<std::uint32_t> keys(tokens_ * width), sorted(tokens_ * width);
  std::vector<Quantiles*> quantile;
  for (int choice = 0; choice < top_k; ++choice) {
    quantile.push_back(&quantiles_[{order, choices, top_k, choice}]);
    quantile.back()->of.resize(tokens_);
  }
  for (std::size_t token = 0; token < tokens_; ++token) {
    float whole = 0;
    for (int choice = 0; choice < top_k; ++choice) whole += table_.probability(choice)[token];
    const float unit = order == Order::own_weight ? whole : 1.0F;
    for (std::size_t choice = 0; choice < width; ++choice) {
      keys[choice * tokens_ + token] =
          bits_of(table_.probability(static_cast<int>(choice))[token] / unit);
    }
  }
  sort_descending(keys.data(), keys.size(), 0, bits_of_one, sorted.data(), scratch_);
  const Bands& bands = bands_.at(choices);
  const auto band_of = [&](std::size_t choice, std::size_t token) {
    return bands.of[table_.expert(static_cast<int>(choice))[token]];
  };
  Places places(bands.count);
  for (const std::uint32_t route : sorted) {
    const std::size_t choice = route / tokens_;
    const std::size_t token = route % tokens_;
    quantile[choice]->of[token] = places.next(band_of(choice, token));
  }
  for (std::size_t choice = 0; choice < width; ++choice) {
    quantile[choice]->routes = places.lengths();
    for (std::size_t token = 0; token < tokens_; ++token) {
      float& place = quantile[choice]->of[token];
      place = places.share(place, band_of(choice, token));
    }
  }
}

const PilotTokens::Bands& PilotTokens::bands(int choices) const {
  const std::lock_guard lock(mutex_);
  return bands_.at(choices);
}

std::size_t PilotTokens::bytes() const {
  const std::size_t of_choice = sizeof(std::uint16_t) + sizeof(float);
  const auto columns = static_cast<std::size_t>(plan_.choices + plan_.sets * plan_.places);
  const auto choices = static_cast<std::size_t>(plan_.choices);
  return sizeof *this + table_.stride() * columns * of_choice +
         (chance_.size() + choices * tokens_) * sizeof(float);
}

}  // namespace moesim::routing
