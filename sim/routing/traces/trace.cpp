#include "sim/routing/traces/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "sim/base/digest.hpp"
#include "sim/base/error.hpp"

namespace moesim::routing {

namespace {

std::size_t size_of(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

std::string Trace::place(std::size_t index, std::size_t each) const {
  const std::size_t cell = index / each;
  const std::size_t layers = size_of(shape_.layers);
  const std::size_t ranks = size_of(shape_.ranks);
  return fmt::format("step {}, rank {}, layer {}", cell / (ranks * layers), cell / layers % ranks,
                     cell % layers);
}

void Trace::check_logits() const {
  const std::size_t experts = size_of(shape_.experts);
  const auto bad = std::find_if(logits_.begin(), logits_.end(), [](float logit) {
    return std::isnan(logit) || (std::isinf(logit) && logit > 0);
  });
  if (bad == logits_.end()) return;
  const auto index = static_cast<std::size_t>(bad - logits_.begin());
  const std::size_t each = size_of(shape_.tokens) * experts;
  throw UsageError(fmt::format(
      "{}: {}, token {}, expert {}: {} is no logit: a softmax needs finite ones or -inf; check "
      "what wrote them",
      array_file_, place(index, each), index % each / experts, index % experts,
      std::isnan(*bad) ? "NaN" : "+inf"));
}

void Trace::check_choices() const {
  const std::size_t held = size_of(shape_.top_k);
  const std::size_t each = size_of(shape_.tokens) * held;
  for (std::size_t first = 0; first < choices_.size(); first += held) {
    for (std::size_t choice = 1; choice < held; ++choice) {
      const auto begin = choices_.begin() + static_cast<std::ptrdiff_t>(first);
      const auto end = begin + static_cast<std::ptrdiff_t>(choice);
      if (std::find(begin, end, *end) == end) continue;
      throw UsageError(fmt::format("{}: {}, token {}: expert {} is chosen twice by this token",
                                   array_file_, place(first, each), first % each / held, *end));
    }
  }
}

void Trace::check_probabilities() const {
  const std::size_t held = size_of(shape_.top_k);
  const std::size_t each = size_of(shape_.tokens) * held;
  for (std::size_t index = 0; index < probabilities_.size(); ++index) {
    const float value = probabilities_[index];
    const bool inside = value >= 0 && value <= 1;
    const bool falling = index % held == 0 || !(value > probabilities_[index - 1]);
    if (inside && falling) continue;
    throw UsageError(fmt::format(
        "{}: {}, token {}, choice {}: probability {}{}", probability_file_, place(index, each),
        index % each / held, index % held, value,
        inside ? " is above the one before: choices stand in falling order of probability"
               : " is not from 0 to 1"));
  }
}

void Trace::check_counts() const {
  const std::size_t experts = size_of(shape_.experts);
  const std::int64_t routes = shape_.tokens * shape_.top_k;
  for (std::size_t first = 0; first < counts_.size(); first += experts) {
    std::int64_t total = 0;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      const std::int64_t count = counts_[first + expert];
      const std::int64_t most = per_ == Per::expert ? shape_.tokens : routes;
      if (count < 0 || count > most) {
        throw UsageError(fmt::format("{}: {}, expert {}: a count of {} with {} tokens", array_file_,
                                     place(first, experts), expert, count, shape_.tokens));
      }
      total += count;
    }
    if (total == routes) continue;
    throw UsageError(fmt::format(
        "{}: {}: the counts add up to {}, not to {} = tokens {} times top_k {}; of counts that "
        "lack "
        "dropped routes or steps, --routing counts:FILE.csv takes the popularity",
        array_file_, place(first, experts), total, routes, shape_.tokens, shape_.top_k));
  }
}

void Trace::seal() {
  if (shape_.tokens > most_tokens) {
    throw UsageError(fmt::format("{}: {} tokens: at most {}", file_, shape_.tokens, most_tokens));
  }
  if (kind_ == Kind::logits) check_logits();
  if (kind_ == Kind::choices) check_choices();
  if (kind_ == Kind::choices) check_probabilities();
  if (kind_ == Kind::counts) check_counts();
  // The same values have different meanings with different axes.
  const std::array<std::int64_t, 8> meaning{static_cast<std::int64_t>(kind_),
                                            static_cast<std::int64_t>(per_),
                                            shape_.steps,
                                            shape_.ranks,
                                            shape_.layers,
                                            shape_.tokens,
                                            shape_.experts,
                                            shape_.top_k};
  Digest arrays;
  arrays.add(std::span(std::as_const(logits_))).add(std::span(std::as_const(choices_)));
  arrays.add(std::span(std::as_const(probabilities_))).add(std::span(std::as_const(counts_)));
  array_digest_ = arrays.value();
  digest_ = Digest()
                .add(std::span<const std::int64_t>(meaning))
                .add(std::span<const std::uint64_t>(&array_digest_, 1))
                .value();
}

std::shared_ptr<Trace> Trace::made(const std::string& name, Kind kind, const TraceShape& shape,
                                   std::size_t found) {
  const std::size_t cells = size_of(shape.steps) * size_of(shape.ranks) * size_of(shape.layers);
  const std::size_t last = size_of(kind == Kind::choices ? shape.top_k : shape.experts);
  const std::size_t size = cells * (kind == Kind::counts ? 1 : size_of(shape.tokens)) * last;
  if (found != size) {
    throw UsageError(fmt::format(
        "{}: {} values instead of {} for {} steps, {} ranks, {} layers, "
        "{} tokens and {} experts",
        name, found, size, shape.steps, shape.ranks, shape.layers, shape.tokens, shape.experts));
  }
  auto trace = std::make_shared<Trace>();
  trace->file_ = trace->array_file_ = trace->probability_file_ = name;
  trace->kind_ = kind;
  trace->shape_ = shape;
  return trace;
}

std::shared_ptr<const Trace> Trace::of_counts(const std::string& name, const TraceShape& shape,
                                              std::vector<std::int64_t> counts, Per per) {
  const std::shared_ptr<Trace> trace = made(name, Kind::counts, shape, counts.size());
  trace->per_ = per;
  trace->counts_ = std::move(counts);
  trace->seal();
  return trace;
}

std::shared_ptr<const Trace> Trace::of_logits(const std::string& name, const TraceShape& shape,
                                              std::vector<float> logits) {
  const std::shared_ptr<Trace> trace = made(name, Kind::logits, shape, logits.size());
  trace->logits_ = std::move(logits);
  trace->seal();
  return trace;
}

std::shared_ptr<const Trace> Trace::of_choices(const std::string& name, const TraceShape& shape,
                                               std::vector<std::uint16_t> choices,
                                               std::vector<float> probabilities) {
  const std::shared_ptr<Trace> trace = made(name, Kind::choices, shape, choices.size());
  trace->choices_ = std::move(choices);
  trace->probabilities_ = std::move(probabilities);
  trace->seal();
  return trace;
}

template <typename Value>
std::span<const Value> Trace::part(const std::vector<Value>& values, int step, int rank,
                                   int layer) const {
  if (values.empty()) return {};
  const std::size_t ranks = size_of(shape_.ranks);
  const std::size_t layers = size_of(shape_.layers);
  const std::size_t each = values.size() / (size_of(shape_.steps) * ranks * layers);
  const std::size_t cell = (size_of(step) * ranks + size_of(rank)) * layers + size_of(layer);
  return std::span<const Value>(values).subspan(cell * each, each);
}

std::span<const float> Trace::logits(int step, int rank, int layer) const {
  return part(logits_, step, rank, layer);
}

std::span<const std::uint16_t> Trace::choices(int step, int rank, int layer) const {
  return part(choices_, step, rank, layer);
}

std::span<const float> Trace::probabilities(int step, int rank, int layer) const {
  return part(probabilities_, step, rank, layer);
}

std::span<const std::int64_t> Trace::counts(int step, int rank, int layer) const {
  return part(counts_, step, rank, layer);
}

}  // namespace moesim::routing
