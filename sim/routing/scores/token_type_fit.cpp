#include "sim/routing/scores/token_type_fit.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/base/parallel.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/tokens/pair_counts.hpp"

namespace moesim::routing {

namespace {

constexpr double most_variance = 6.4;
// Layers with few experts differ more from each other, and cost less.
int simulated_layers(int experts) { return std::clamp(3072 / experts, 24, 48); }
// Unlike any seed that a user would choose: a model that is fitted to its own output must not use
// the same random numbers.
constexpr std::uint64_t seed_of_fit = 0x6b696e6473;
// The most logits of one layer; of a larger trace only a part is simulated, and the error is that
// of this part.
constexpr double most_logits = 1 << 22;

bool can_tell(const TraceShape& shape, Trace::Kind kind) {
  return kind != Trace::Kind::counts && shape.top_k >= 2 && shape.top_k <= shape.experts - 2 &&
         shape.tokens >= 4 && shape.experts <= 1024;
}

// [layer] The estimate from `excess` for each layer, computed on all cores.
template <typename Function>
std::vector<double> of_layers(int layers, const Function& excess) {
  std::vector<double> excesses(static_cast<std::size_t>(layers));
  parallel_for(excesses.size(), core_count(),
               [&](std::size_t layer) { excesses[layer] = excess(static_cast<int>(layer)); });
  return excesses;
}

// The result of generated layers for one variance.
struct Generated {
  double mean = 0, deviation = 0;  // of one layer's excess
};

// How much of one layer of a trace is generated: popularity for a few of its steps and ranks, and
// as many tables of tokens as the trace has. Computing the weights of a step and rank costs more
// than drawing their tokens.
struct Cells {
  int steps = 1, ranks = 1;
  int stride = 1;  // from one step to the next
  int tables = 1;  // of each step and rank

  explicit Cells(const TraceShape& shape)
      : steps(std::min(shape.steps, 4)),
        ranks(std::min(shape.ranks, 4)),
        stride(shape.steps / steps) {
    const double logits = static_cast<double>(shape.tokens) * shape.experts;
    const double whole = static_cast<double>(shape.steps) * shape.ranks;
    tables = std::max(1, static_cast<int>(std::min(whole, most_logits / logits) / steps / ranks));
  }
};

double generated_excess(const ScoreSource& source, std::uint32_t layer, const Cells& cells) {
  const ScoreModel& model = *source.model;
  const TileKernels& kernels = tile_kernels(best_simd_level());
  // The distance between tables, in whole tiles.
  const std::int64_t pitch =
      (model.tokens + tile_tokens - 1) / static_cast<std::int64_t>(tile_tokens) * tile_tokens;
  PairCounts pairs(model.experts);
  ChoiceTable table;
  for (int step = 0; step < cells.steps; ++step) {
    const LogitSource logits(source, LogitShape{model.experts, 1, cells.ranks}, seed_of_fit,
                             static_cast<std::uint32_t>(step * cells.stride), layer);
    for (int cell = 0; cell < cells.ranks * cells.tables; ++cell) {
      const std::int64_t first = cell / cells.ranks * pitch;
      table.reset(model.experts, model.top_k, 0, 0, model.tokens);
      table.append_tiles(model.tokens, 0, {}, kernels, [&](std::int64_t token, float* tile) {
        logits.fill_tile(static_cast<std::uint32_t>(cell % cells.ranks),
                         static_cast<std::uint64_t>(first + token), kernels, tile);
      });
      pairs.add(table);
    }
  }
  return pairs.excess();
}

// The same random numbers for each variance, so that results are comparable.
Generated generate(const ScoreModel& fitted, double variance, const Cells& cells) {
  ScoreModel model = fitted;
  model.token_type = FittedValue{variance, 0};
  ScoreSource source;
  source.kind = ScoreSource::Kind::scores;
  source.model = std::make_shared<const ScoreModel>(model);
  const int layers = simulated_layers(model.experts);
  const std::vector<double> excesses = of_layers(layers, [&](int layer) {
    return generated_excess(source, static_cast<std::uint32_t>(layer), cells);
  });
  Generated result;
  result.mean = std::accumulate(excesses.begin(), excesses.end(), 0.0) / layers;
  for (const double excess : excesses) {
    result.deviation += std::pow(excess - result.mean, 2) / (layers - 1);
  }
  result.deviation = std::sqrt(result.deviation);
  return result;
}

// The excess as a function of the variance, where it has been generated. It increases roughly with
// the square of the variance, so the square root of the excess over no types is nearly linear.
class ExcessCurve {
 public:
  ExcessCurve(const ScoreModel& model, const Cells& cells) : model_(model), cells_(cells) {
    points_.push_back({0, generate(model, 0, cells), 0});
  }

  // The variance with this excess, found by the secant method.
  double find(double excess) {
    constexpr int most_points = 6;
    const double wanted = root(excess);
    if (wanted == 0) {  // the curve near 0 gives the smallest detectable value
      add(0.2);
      return 0;
    }
    // Without the constraint that inclusions sum to k, types add (M - 1) / M^2 times the square.
    double next = wanted * token_types / std::sqrt(token_types - 1.0);
    for (int point = 1; point < most_points; ++point) {
      next = std::min(next, most_variance);
      add(next);
      const double before = next;
      next = variance_at(excess);
      if (std::abs(next - before) < 0.02 * before) break;
    }
    return std::min(next, most_variance);
  }

  // The variance on the line through the nearest points; beyond the last, where that may lie beyond
  // most_variance, through the last two.
  double variance_at(double excess) const {
    const double wanted = root(excess);
    const std::size_t above = above_of([&](const Point& point) { return point.root >= wanted; });
    const Point& low = points_[above - 1];
    const Point& high = points_[above];
    if (high.root <= low.root) return high.variance;
    const double part = (wanted - low.root) / (high.root - low.root);
    return low.variance + part * (high.variance - low.variance);
  }

  // The deviation of one layer's excess.
  double deviation_at(double variance) const {
    const std::size_t above =
        above_of([&](const Point& point) { return point.variance >= variance; });
    const Point& low = points_[above - 1];
    const Point& high = points_[above];
    const double part = (variance - low.variance) / (high.variance - low.variance);
    return std::lerp(low.generated.deviation, high.generated.deviation, std::clamp(part, 0.0, 1.0));
  }

  double without_types() const { return points_.front().generated.mean; }

 private:
  struct Point {
    double variance = 0;
    Generated generated;
    double root = 0;
  };

  double root(double excess) const { return std::sqrt(std::max(0.0, excess - without_types())); }

  void add(double variance) {
    const Generated generated = generate(model_, variance, cells_);
    points_.push_back({variance, generated, root(generated.mean)});
    std::sort(points_.begin(), points_.end(),
              [](const Point& one, const Point& other) { return one.variance < other.variance; });
  }

  // The first point of which `is_beyond` holds, else the last; never the first of all.
  template <typename Test>
  std::size_t above_of(const Test& is_beyond) const {
    std::size_t above = 1;
    while (above + 1 < points_.size() && !is_beyond(points_[above])) ++above;
    return above;
  }

  const ScoreModel& model_;
  Cells cells_;
  std::vector<Point> points_;  // by rising variance, from 0
};

}  // namespace

std::vector<double> pair_excess(const Trace& trace) {
  const TraceShape& shape = trace.shape();
  const int cells = shape.steps * shape.ranks;
  const double pairs = static_cast<double>(shape.experts) * shape.experts;
  const int used = std::min(cells, std::max(64, static_cast<int>((1 << 25) / pairs)));
  return of_layers(shape.layers, [&](int layer) {
    PairCounts counted(shape.experts);
    ChoiceTable table;
    for (int place = 0; place < used; ++place) {
      const int cell = static_cast<int>(std::int64_t{place} * cells / used);
      const int step = cell / shape.ranks;
      const int rank = cell % shape.ranks;
      table.reset(shape.experts, shape.top_k, 0, 0, shape.tokens);
      if (trace.kind() == Trace::Kind::choices) {
        table.append_choices(trace.choices(step, rank, layer), {}, shape.top_k, shape.tokens);
      } else {
        table.append_logits(trace.logits(step, rank, layer), shape.tokens, rank, {},
                            tile_kernels(best_simd_level()));
      }
      counted.add(table);
    }
    return counted.excess();
  });
}

std::optional<FittedValue> fit_token_types(const ScoreModel& model, const Trace& trace) {
  const TraceShape& shape = trace.shape();
  if (!can_tell(shape, trace.kind())) return std::nullopt;
  const std::vector<double> excesses = pair_excess(trace);
  const auto layers = static_cast<double>(excesses.size());
  const double seen = std::accumulate(excesses.begin(), excesses.end(), 0.0) / layers;
  ExcessCurve curve(model, Cells(shape));
  FittedValue found{curve.find(seen), 0};
  // The error of the trace's layers and of the generated ones that they are held against.
  const double error = curve.deviation_at(found.value) *
                       std::sqrt(1 / layers + 1.0 / simulated_layers(shape.experts));
  // Below the excess without types, only an upper bound of the variance can be given.
  const double from = std::max(seen, curve.without_types());
  found.error = std::max(curve.variance_at(from + error) - found.value,
                         found.value - curve.variance_at(from - error));
  return found;
}

}  // namespace moesim::routing
