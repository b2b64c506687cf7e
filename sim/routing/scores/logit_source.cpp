#include "sim/routing/scores/logit_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numeric>
#include <utility>

#include "sim/routing/scores/race.hpp"
#include "sim/routing/scores/score_model.hpp"
#include "sim/routing/scores/unknown_popularity.hpp"

namespace moesim::routing {

namespace {

// log of a Gamma(shape, 1) draw, in log space so that a small shape does not underflow:
// G(a) = G(a + 1) * u^(1 / a).
double log_gamma_draw(Stream& stream, double shape) {
  if (shape >= 1) return std::log(stream.gamma(shape));
  const double above = std::log(stream.gamma(shape + 1));
  return above + std::log(stream.uniform()) / shape;
}

std::vector<double> zipf_offsets(double exponent, int experts, Stream& stream) {
  std::vector<double> offsets(static_cast<std::size_t>(experts));
  for (std::size_t place = 0; place < offsets.size(); ++place) {
    offsets[place] = -exponent * std::log(static_cast<double>(place + 1));
  }
  for (std::size_t left = offsets.size(); left > 1; --left) {  // Fisher and Yates
    const auto pick = static_cast<std::size_t>(stream.uniform() * static_cast<double>(left));
    std::swap(offsets[left - 1], offsets[std::min(pick, left - 1)]);
  }
  return offsets;
}

// The expert that a draw from a stream picks, all equally likely.
std::size_t pick(Stream& stream, std::size_t among) {
  const auto drawn = static_cast<std::size_t>(stream.uniform() * static_cast<double>(among));
  return std::min(drawn, among - 1);
}

// Whether a replica has a burst: one random draw for all its layers. Its stream differs from those
// of the layers' popularities by the rank, which they do not use.
bool has_burst(const ScoreSource& source, std::uint64_t seed, std::uint32_t replica) {
  Stream coin(StreamKey{seed, Purpose::expert_bias, replica, 0, 1});
  return coin.uniform() < source.share;
}

std::vector<double> scenario_offsets(const ScoreSource& source, const LogitShape& shape,
                                     const StreamKey& key) {
  using Kind = ScoreSource::Kind;
  const auto experts = static_cast<std::size_t>(shape.experts);
  const auto ranks = static_cast<std::size_t>(shape.expert_parallel);
  const std::size_t local = experts / ranks;
  const double heat = std::log(source.parameter);
  std::vector<double> offsets(experts, 0.0);
  Stream stream(key);
  switch (source.kind) {
    case Kind::hot_expert:
      offsets[pick(stream, experts)] = heat;
      break;
    case Kind::hot_rank:
      std::fill_n(offsets.begin() + static_cast<std::ptrdiff_t>(pick(stream, ranks) * local), local,
                  heat);
      break;
    case Kind::spread_heat: {
      const std::size_t first = pick(stream, ranks);
      for (std::size_t hot = 0; hot < local; ++hot) {
        offsets[(first + hot) % ranks * local + hot / ranks] = heat;
      }
      break;
    }
    case Kind::rotating: {
      StreamKey at_start = key;
      at_start.replica = 0;
      Stream start(at_start);
      offsets[(pick(start, experts) + key.replica) % experts] = heat;
      break;
    }
    case Kind::burst:
      if (has_burst(source, key.seed, key.replica)) offsets[pick(stream, experts)] = heat;
      break;
    default:
      break;  // balanced
  }
  return offsets;
}

std::vector<double> count_offsets(const ScoreSource& source, const LogitShape& shape,
                                  std::uint32_t layer) {
  check_counted_experts(source, shape.experts);
  return source.popularity->offsets(layer, shape.top_k);
}

}  // namespace

int recorded_rank(int gpu, int expert_parallel, int slices, int recorded) {
  const int block = expert_parallel * slices;
  const int group = gpu % block / expert_parallel;
  return (gpu / block * block + gpu % expert_parallel * slices + group) % recorded;
}

LogitSource::LogitSource(const ScoreSource& source, const LogitShape& shape, std::uint64_t seed,
                         std::uint32_t replica, std::uint32_t layer)
    : normal_(source.kind == ScoreSource::Kind::gaussian ||
              source.kind == ScoreSource::Kind::unknown ||
              source.kind == ScoreSource::Kind::counts || source.trace != nullptr),
      key_{seed, Purpose::logits, replica, layer, 0},
      expert_parallel_(shape.expert_parallel),
      slices_(shape.slices) {
  const int experts = shape.experts;
  const StreamKey bias_key{seed, Purpose::expert_bias, replica, layer, 0};
  Stream stream(bias_key);
  std::vector<double> offsets(static_cast<std::size_t>(experts), 0.0);
  switch (source.kind) {
    case ScoreSource::Kind::gaussian:
      for (double& offset : offsets) offset = source.parameter * stream.normal();
      break;
    case ScoreSource::Kind::unknown: {
      const double spread = drawn_spread(source.share, seed, replica, layer);
      for (double& offset : offsets) offset = spread * stream.normal();
      break;
    }
    case ScoreSource::Kind::zipf:
      offsets = zipf_offsets(source.parameter, experts, stream);
      break;
    case ScoreSource::Kind::dirichlet:
      for (double& offset : offsets) offset = log_gamma_draw(stream, source.parameter);
      break;
    case ScoreSource::Kind::counts:
      offsets = count_offsets(source, shape, layer);
      break;
    case ScoreSource::Kind::scores:
      offsets = model_offsets(*source.model, shape, seed, replica, layer);
      break;
    case ScoreSource::Kind::trace:
    case ScoreSource::Kind::trace_repeat:
      trace_ = source.trace;
      step_ = static_cast<int>(replica % static_cast<std::uint32_t>(trace_->shape().steps));
      layer_ = static_cast<int>(layer % static_cast<std::uint32_t>(trace_->shape().layers));
      offsets_.resize(static_cast<std::size_t>(experts));
      if (trace_->kind() == Trace::Kind::counts) trace_offsets(shape.gpus);
      break;
    default:
      offsets = scenario_offsets(source, shape, bias_key);
  }
  if (!normal_) {  // popularities are shares: relative to the most popular expert
    const double largest = *std::max_element(offsets.begin(), offsets.end());
    for (double& offset : offsets) offset -= largest;
  }
  offsets_.assign(offsets.begin(), offsets.end());
  if (shape.expert_placement != nullptr) place(*shape.expert_placement, static_cast<int>(layer));
}

void LogitSource::place(const ExpertPlacement& placement, int layer) {
  expert_at_ = placement.expert_at(layer);
  position_of_ = placement.position_of(layer);
  for (std::vector<float>* rows : {&offsets_, &rank_offsets_, &type_offsets_}) {
    put_in_placement(expert_at_, *rows);
  }
}

std::span<const std::uint16_t> LogitSource::positions(std::span<const std::uint16_t> experts,
                                                      std::vector<std::uint16_t>& scratch) const {
  if (position_of_.empty()) return experts;
  scratch.clear();
  for (const std::uint16_t expert : experts) scratch.push_back(position_of_[expert]);
  return scratch;
}

std::vector<double> LogitSource::model_offsets(const ScoreModel& model, const LogitShape& shape,
                                               std::uint64_t seed, std::uint32_t replica,
                                               std::uint32_t layer) {
  const ScoreDraw draw(model, shape.experts, seed, replica, layer);
  const Race race = draw.race();
  if (model.differs_between_ranks()) {
    for (int gpu = 0; gpu < shape.gpus; ++gpu) {
      const std::vector<double> own =
          race.moved_to(draw.gpu_inclusions(static_cast<std::uint32_t>(gpu)));
      rank_offsets_.insert(rank_offsets_.end(), own.begin(), own.end());
    }
  }
  if (draw.has_token_types()) draw_types(draw, model.differs_between_ranks() ? shape.gpus : 0);
  return race.log_weights;
}

// Draws the types of tokens; for a typical rank if `gpus` is 0.
void LogitSource::draw_types(const ScoreDraw& draw, int gpus) {
  const MixedRace race = draw.mixed_race();
  const auto append = [&](const MixedRace::Types& weights) {
    for (const std::vector<double>& of_type : weights) {
      type_offsets_.insert(type_offsets_.end(), of_type.begin(), of_type.end());
    }
  };
  if (gpus == 0) append(race.log_weights());
  for (int gpu = 0; gpu < gpus; ++gpu) {
    append(race.moved_to(draw.gpu_inclusions(static_cast<std::uint32_t>(gpu))));
  }
}

// Gives each of 16 tokens of noise the offsets of its type.
void LogitSource::add_type_offsets(std::uint32_t rank, std::uint64_t first_token,
                                   float* tile) const {
  static_assert(token_types == 4, "a type is drawn from two bits");
  const std::size_t experts = offsets_.size();
  const std::size_t row = rank_offsets_.empty() ? 0 : rank;
  const float* const offsets = type_offsets_.data() + row * token_types * experts;
  StreamKey key = key_;
  key.purpose = Purpose::token_kind;
  key.rank = rank;
  std::array<const float*, tile_tokens> of_token{};
  for (std::size_t token = 0; token < tile_tokens; ++token) {
    const std::uint64_t place = first_token + token;
    const std::size_t token_type = philox_block(key, place / 4)[place % 4] >> 30;
    of_token[token] = offsets + token_type * experts;
  }
  for (std::size_t expert = 0; expert < experts; ++expert) {
    for (std::size_t token = 0; token < tile_tokens; ++token) {
      tile[expert * tile_tokens + token] += of_token[token][expert];
    }
  }
}

std::span<const float> LogitSource::offsets_of(std::uint32_t rank) const {
  if (rank_offsets_.empty()) return offsets_;
  const std::size_t experts = offsets_.size();
  assert((rank + 1) * experts <= rank_offsets_.size());
  return std::span(rank_offsets_).subspan(rank * experts, experts);
}

void LogitSource::trace_offsets(int gpus) {
  std::vector<std::vector<double>> of_rank(static_cast<std::size_t>(trace_->shape().ranks));
  for (int gpu = 0; gpu < gpus; ++gpu) {
    const int rank = trace_rank(static_cast<std::uint32_t>(gpu));
    std::vector<double>& own = of_rank[static_cast<std::size_t>(rank)];
    if (own.empty()) {
      const std::span<const std::int64_t> routes = trace_->counts(step_, rank, layer_);
      const std::vector<double> counts(routes.begin(), routes.end());
      own = counted_offsets(counts, trace_->shape().top_k);
    }
    rank_offsets_.insert(rank_offsets_.end(), own.begin(), own.end());
  }
}

LogitSource::Choices LogitSource::choices(std::uint32_t rank) const {
  const int row = trace_rank(rank);
  return {trace_->choices(step_, row, layer_), trace_->probabilities(step_, row, layer_),
          trace_->shape().top_k};
}

// Tokens beyond the recorded ones repeat from the first.
void LogitSource::recorded_tile(std::uint32_t rank, std::uint64_t first_token,
                                const TileKernels& kernels, float* tile) const {
  const std::size_t experts = offsets_.size();
  const auto tokens = static_cast<std::size_t>(trace_->shape().tokens);
  const std::span<const float> recorded = trace_->logits(step_, trace_rank(rank), layer_);
  const std::size_t first = first_token % tokens;
  if (first + tile_tokens <= tokens) {
    kernels.transpose(recorded.data() + first * experts, experts, static_cast<int>(experts), tile);
    return;
  }
  std::vector<float> rows;
  for (std::size_t token = 0; token < tile_tokens; ++token) {
    const auto row = recorded.subspan((first + token) % tokens * experts, experts);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  kernels.transpose(rows.data(), experts, static_cast<int>(experts), tile);
}

void LogitSource::fill_tile(std::uint32_t rank, std::uint64_t first_token,
                            const TileKernels& kernels, float* tile) const {
  if (trace_ != nullptr && trace_->kind() == Trace::Kind::logits) {
    recorded_tile(rank, first_token, kernels, tile);
    if (expert_at_.empty()) return;
    const std::vector<float> by_number(tile, tile + expert_at_.size() * tile_tokens);
    for (std::size_t place = 0; place < expert_at_.size(); ++place) {
      std::copy_n(by_number.data() + std::size_t{expert_at_[place]} * tile_tokens, tile_tokens,
                  tile + place * tile_tokens);
    }
    return;
  }
  StreamKey key = key_;
  key.rank = rank;
  const NoiseKey noise{philox_words(key), first_token};
  const int experts = static_cast<int>(offsets_.size());
  if (has_token_types()) {
    const std::vector<float> none(offsets_.size(), 0.0F);
    kernels.gumbel(noise, experts, none.data(), tile);
    add_type_offsets(rank, first_token, tile);
    return;
  }
  (normal_ ? kernels.gaussian : kernels.gumbel)(noise, experts, offsets_of(rank).data(), tile);
}

std::vector<float> LogitSource::rank_logits(std::uint32_t rank, std::int64_t tokens,
                                            const TileKernels& kernels) const {
  const std::size_t experts = offsets_.size();
  std::vector<float> logits(static_cast<std::size_t>(tokens) * experts);
  std::vector<float> tile(experts * tile_tokens);
  for (std::int64_t first = 0; first < tokens; first += tile_tokens) {
    fill_tile(rank, static_cast<std::uint64_t>(first), kernels, tile.data());
    const auto count =
        static_cast<std::size_t>(std::min<std::int64_t>(tile_tokens, tokens - first));
    for (std::size_t token = 0; token < count; ++token) {
      for (std::size_t expert = 0; expert < experts; ++expert) {
        logits[(static_cast<std::size_t>(first) + token) * experts + expert] =
            tile[expert * tile_tokens + token];
      }
    }
  }
  return logits;
}

}  // namespace moesim::routing
