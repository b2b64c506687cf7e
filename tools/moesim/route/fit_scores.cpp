#include "tools/moesim/route/fit_scores.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/base/error.hpp"
#include "sim/routing/scores/score_fit.hpp"
#include "tools/moesim/base/output.hpp"

namespace moesim::tool {
namespace {

// "0.57 +- 0.16": two digits of the error, and no more of the value than it leaves sure.
std::string with_error(double value, double error) {
  constexpr int most = 6;
  constexpr int usual = 3;
  const int decimals =
      error > 0 ? std::clamp(1 - static_cast<int>(std::floor(std::log10(error))), 0, most) : usual;
  return fmt::format("{:.{}f} +- {:.{}f}", value, decimals, error, decimals);
}

// Deviations are easier to read than variances: 0.3 is a popularity some 30 % off.
std::string deviation(const std::string& what,
                      const std::optional<routing::FittedValue>& variance) {
  if (!variance) return fmt::format("{} not to be told", what);
  const double value = std::sqrt(variance->value);
  if (value == 0) return fmt::format("{} 0 (below {:.2g})", what, std::sqrt(variance->error));
  return fmt::format("{} {}", what, with_error(value, variance->error / (2 * value)));
}

routing::ScoreModel fitted(const std::string& trace) {
  try {
    return routing::fit_score_model(*routing::Trace::load(trace), trace);
  } catch (const UsageError& error) {
    throw UsageError(
        fmt::format("--fit-scores '{}': {}; it takes recorded routing: a trace.json or its folder",
                    trace, error.what()));
  }
}

}  // namespace

Flag fit_scores_flag() {
  return {"fit-scores", "TRACE", "none",
          "fit a model of scores to this trace instead; --out is its JSON, for --routing scores:"};
}

ExitCode fit_scores(const CommandLine& line) {
  const std::string trace = line.get("fit-scores");
  if (!line.has("out")) throw UsageError("--fit-scores: give the file of the model: --out FILE");
  if (line.get("out").ends_with(".csv")) {
    throw UsageError(fmt::format("--out: {}: the model is a JSON document: choose a name in .json",
                                 line.get("out")));
  }
  const Output out(line.get("out"));
  const routing::ScoreModel model = fitted(trace);
  out.write(model.text());
  note(fmt::format("{}: {} experts, top-{}, {} layers, from {} steps of {} ranks of {} tokens",
                   out.path(), model.experts, model.top_k, model.popularity.size(), model.steps,
                   model.ranks, model.tokens));
  note(fmt::format("standard deviations of log-popularity: {}; {}; {}; {}; {}; {}",
                   deviation("between experts", model.spread),
                   deviation("drift over steps", model.drift),
                   deviation("fresh each step", model.step), deviation("between ranks", model.rank),
                   deviation("fresh on each rank and step", model.rank_step),
                   deviation("between types of tokens", model.token_type)));
  if (model.autocorrelation && model.drift->value > 0) {
    note(fmt::format("drift left after a step: {}",
                     with_error(model.autocorrelation->value, model.autocorrelation->error)));
  }
  note(fmt::format("try: moesim route --routing scores:{} --experts {} --router topk --top-k {}",
                   out.path(), model.experts, model.top_k));
  return ExitCode::ok;
}

}  // namespace moesim::tool
