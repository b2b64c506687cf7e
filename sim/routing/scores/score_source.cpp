#include "sim/routing/scores/score_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>

#include "sim/base/error.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/routing/scores/score_model.hpp"

namespace moesim::routing {

namespace {

using Kind = ScoreSource::Kind;

// The syntax of a kind. `fallback` 0: the value is required, but for a share alone.
struct Spelling {
  Kind kind;
  std::string_view name;
  std::string_view value;    // "" where there is none
  std::string_view meaning;  // for help texts
  double least = 0;
  double fallback = 0;

  std::string form() const { return fmt::format("{}{}{}", name, value.empty() ? "" : ":", value); }
};

constexpr double usual_heat = 4;
constexpr double usual_burst_share = 0.25;
// Below, one expert has all of the weight, whatever the draw.
constexpr double smallest_dirichlet = 1e-6;

constexpr Spelling spellings[] = {
    {Kind::gaussian, "gaussian", "SIGMA",
     "a bias per expert and layer of that spread over scores of spread 1, the same on all GPUs"},
    {Kind::zipf, "zipf", "A", "the n-th expert has n^-A times the weight of the first"},
    {Kind::dirichlet, "dirichlet", "A", "popularity drawn; the smaller A, the less even",
     smallest_dirichlet},
    {Kind::counts, "counts", "FILE", "a CSV of layer, expert, count; loads as counted, for any k"},
    {Kind::unknown, "unknown", "SHARE",
     "as uneven as in recorded trainings, other in each replica; without a balance loss in a share "
     "of them"},
    {Kind::balanced, "balanced", "", "all experts alike"},
    {Kind::hot_expert, "hot-expert", "X",
     "one expert of X times the weight: X times the load for one expert per token, less for more",
     1, usual_heat},
    {Kind::hot_rank, "hot-rank", "X", "all experts of one GPU, where they lie in order, X times", 1,
     usual_heat},
    {Kind::spread_heat, "spread-heat", "X", "as many experts, on different GPUs", 1, usual_heat},
    {Kind::rotating, "rotating", "X", "one expert, the next one each replica", 1, usual_heat},
    {Kind::burst, "burst", "X:SHARE", "one expert, in a share of the replicas", 1, usual_heat},
    {Kind::ragged_source, "ragged-source", "R", "GPUs hold S to S/R tokens", 1, usual_heat},
    {Kind::empty_rank, "empty-rank", "", "one GPU of each group holds no tokens"},
    {Kind::scores, "scores", "FILE", "a model that 'moesim route --fit-scores' made of a trace"},
    {Kind::trace, "trace", "FILE", "recorded routing: a trace.json or its folder"},
    {Kind::trace_repeat, "trace-repeat", "FILE",
     "the same, repeated where it has fewer tokens than a GPU takes"},
};

const Spelling& spelling_of(Kind kind) {
  return *std::find_if(std::begin(spellings), std::end(spellings),
                       [&](const Spelling& spelling) { return spelling.kind == kind; });
}

std::string trace_of_array(std::string_view file) {
  return fmt::format("make one with moesim import {} --top-k K --out FOLDER, for trace:FOLDER",
                     file);
}

std::string with_forms(const std::string& reason, const ScoreSourceForms& forms) {
  std::string listed;
  for (const auto& [form, meaning] : forms) {
    listed += fmt::format("{}{}", listed.empty() ? "" : ", ", form);
  }
  return fmt::format("{}; choose one of {} (gaussian:0.1, hot-expert:4, say)", reason, listed);
}

[[noreturn]] void refuse(const std::string& what, std::string_view text,
                         const std::string& reason) {
  throw NoScoreSource(fmt::format("{} '{}': {}", what, text, reason));
}

double parse_parameter(const std::string& what, std::string_view text, std::string_view value,
                       double least) {
  const std::optional<double> parsed = parse_number<double>(value);
  if (!parsed || !std::isfinite(*parsed)) {
    refuse(what, text, fmt::format("'{}' is not a number", value));
  }
  const double number = *parsed;
  if (number < least) {
    refuse(what, text, fmt::format("the parameter has to be at least {:g}", least));
  }
  if (number > 1e6) refuse(what, text, "the parameter has to be at most 1e6");
  return number;
}

double parse_share(const std::string& what, std::string_view text, std::string_view value) {
  const double share = parse_parameter(what, text, value, 0);
  if (share > 1) refuse(what, text, fmt::format("'{}' is no share from 0 to 1", value));
  return share;
}

// Layers sorted by number, experts from 0 to the largest in the file.
void load_counts(const std::string& file, ScoreSource& source) {
  const CsvTable table = CsvTable::load(file);
  const std::size_t layer_at = table.column("layer");
  const std::size_t expert_at = table.column("expert");
  const std::size_t count_at = table.column("count");
  constexpr std::int64_t most_count = std::int64_t{1} << 52;
  std::map<std::int64_t, std::map<std::int64_t, double>> counts;
  std::int64_t experts = 0;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const std::int64_t layer = table.whole(row, layer_at, 65535);
    const std::int64_t expert = table.whole(row, expert_at, 65534);
    const auto count = static_cast<double>(table.whole(row, count_at, most_count));
    experts = std::max(experts, expert + 1);
    if (!counts[layer].emplace(expert, count).second) {
      throw UsageError(fmt::format(
          "{}, line {}: layer {}, expert {} is there twice; keep the rows of one model and domain",
          table.name, table.lines[row], layer, expert));
    }
  }
  if (counts.empty()) throw UsageError(fmt::format("{}: no rows of counts", table.name));
  std::vector<std::vector<double>> popularity;
  for (const auto& [layer, row] : counts) {
    std::vector<double> shares(static_cast<std::size_t>(experts), 0.0);
    double total = 0;
    for (const auto& [expert, count] : row) total += count;
    if (total <= 0) {
      throw UsageError(fmt::format("{}: all counts of layer {} are 0", table.name, layer));
    }
    for (const auto& [expert, count] : row) {
      shares[static_cast<std::size_t>(expert)] = count / total;
    }
    popularity.push_back(std::move(shares));
    const auto unlisted = static_cast<int>(experts - static_cast<std::int64_t>(row.size()));
    source.unlisted_experts = std::max(source.unlisted_experts, unlisted);
  }
  source.popularity = std::make_shared<const CountedPopularity>(std::move(popularity));
}

bool is_trace(Kind kind) { return kind == Kind::trace || kind == Kind::trace_repeat; }

// The contents of the source's file. An unsuitable file is refused with the option value that named
// it.
void load_file(const Spelling& spelling, std::string_view text, const std::string& what,
               ScoreSource& source) {
  try {
    if (is_trace(source.kind) && source.file.ends_with(".npy")) {
      throw UsageError(fmt::format("an array is no trace: {}", trace_of_array(source.file)));
    }
    if (source.kind == Kind::counts) {
      load_counts(source.file, source);
    } else if (source.kind == Kind::scores) {
      source.model = ScoreModel::load(source.file);
    } else {
      source.trace = Trace::load(find_trace(source.file));
    }
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{} '{}': {}; {} takes {}", what, text, error.what(),
                                 spelling.form(), spelling.meaning));
  }
}

}  // namespace

NoScoreSource::NoScoreSource(const std::string& reason)
    : UsageError(with_forms(reason, score_source_forms())), reason_(reason) {}

UsageError NoScoreSource::of(const ScoreSourceForms& forms) const {
  return UsageError(with_forms(reason_, forms));
}

void check_counted_experts(const ScoreSource& source, int experts) {
  if (source.popularity == nullptr) return;
  const int counted = source.popularity->experts();
  if (counted == experts) return;
  throw UsageError(fmt::format(
      "{} counts {} experts, the job has {}: choose a --model with as many, or --experts {} of "
      "simulate, sweep and route{}",
      source.file, counted, experts, counted,
      counted > experts
          ? ""
          : fmt::format(", or add a row of count 0 for each that got no token, up to expert {}",
                        experts - 1)));
}

ScoreSourceForms score_source_forms(bool (*taken)(Kind kind)) {
  ScoreSourceForms forms;
  for (const Spelling& spelling : spellings) {
    if (taken != nullptr && !taken(spelling.kind)) continue;
    std::string meaning(spelling.meaning);
    if (spelling.kind == Kind::burst) {
      meaning += fmt::format(" [{}:{}]", usual_heat, usual_burst_share);
    } else if (spelling.kind == Kind::unknown) {
      meaning += " [0]";
    } else if (spelling.fallback > 0) {
      meaning += fmt::format(" [{}]", spelling.fallback);
    }
    forms.emplace_back(spelling.form(), meaning);
  }
  return forms;
}

std::string ScoreSource::name() const {
  const Spelling& spelling = spelling_of(kind);
  if (spelling.value.empty()) return std::string(spelling.name);
  if (!file.empty()) return fmt::format("{}:{}", spelling.name, file);
  if (kind == Kind::unknown) return fmt::format("{}:{}", spelling.name, share);
  if (kind == Kind::burst) return fmt::format("{}:{}:{}", spelling.name, parameter, share);
  return fmt::format("{}:{}", spelling.name, parameter);
}

std::int64_t ScoreSource::tokens_of(int rank, int ranks, std::int64_t tokens) const {
  if (ranks < 2) return tokens;
  if (kind == Kind::empty_rank) return rank + 1 == ranks ? 0 : tokens;
  if (kind != Kind::ragged_source) return tokens;
  const double missing = (1 - 1 / parameter) * rank / (ranks - 1);
  return tokens - std::llround(static_cast<double>(tokens) * missing);
}

bool ScoreSource::has_even_popularity() const {
  return kind == Kind::balanced || is_ragged() || (kind == Kind::gaussian && parameter == 0);
}

bool ScoreSource::is_ragged(int ranks, std::int64_t tokens) const {
  if (!is_ragged()) return false;
  for (int rank = 1; rank < ranks; ++rank) {
    if (tokens_of(rank, ranks, tokens) != tokens_of(0, ranks, tokens)) return true;
  }
  return false;
}

int ScoreSource::distinct_replicas(int replicas) const {
  return trace == nullptr ? replicas : std::min(replicas, trace->shape().steps);
}

ScoreSource load_counted_scores(const std::string& file) {
  ScoreSource source;
  source.kind = Kind::counts;
  source.file = file;
  load_counts(file, source);
  return source;
}

ScoreSource parse_score_source(std::string_view text, const std::string& what) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const bool has_value = colon != std::string_view::npos && colon + 1 < text.size();
  std::string_view value = has_value ? text.substr(colon + 1) : std::string_view{};
  const auto* const spelling =
      std::find_if(std::begin(spellings), std::end(spellings),
                   [&](const Spelling& candidate) { return candidate.name == name; });
  if (spelling == std::end(spellings)) {
    const std::string trace =
        text.ends_with(".npy")
            ? fmt::format(", but an array, and no trace: {}", trace_of_array(text))
            : "";
    refuse(what, text, fmt::format("'{}' is no source of scores{}", name, trace));
  }
  ScoreSource source;
  source.kind = spelling->kind;
  source.parameter = spelling->fallback;
  if (source.kind == Kind::burst) source.share = usual_burst_share;
  if (spelling->value.empty()) {
    if (colon != std::string_view::npos) {
      refuse(what, text, fmt::format("{} takes no value", name));
    }
    return source;
  }
  if (!has_value) {
    const bool optional = spelling->fallback > 0 || source.kind == Kind::unknown;
    if (optional && colon == std::string_view::npos) return source;
    refuse(what, text, fmt::format("{} needs a value after a colon", name));
  }
  if (spelling->value == "FILE") {
    source.file = std::string(value);
    load_file(*spelling, text, what, source);
    return source;
  }
  if (source.kind == Kind::unknown) {
    source.share = parse_share(what, text, value);
    return source;
  }
  if (const std::size_t second = value.find(':');
      source.kind == Kind::burst && second != std::string_view::npos) {
    source.share = parse_share(what, text, value.substr(second + 1));
    value = value.substr(0, second);
  }
  source.parameter = parse_parameter(what, text, value, spelling->least);
  return source;
}

}  // namespace moesim::routing
