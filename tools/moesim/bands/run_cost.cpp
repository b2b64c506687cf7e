#include "tools/moesim/bands/run_cost.hpp"

#include <fmt/format.h>

#include "sim/base/error.hpp"
#include "sim/base/text.hpp"

namespace moesim::tool {

using training::TrainingStep;

namespace {

constexpr double most_tokens = 1e18;
constexpr double most_price = 1e9;
constexpr double us_per_day = 24.0 * 3600 * 1e6;

// 15e12, or with a letter for a billion or a trillion: 500B, 15T.
double tokens_of(const std::string& text) {
  const double unit = text.ends_with('T') ? 1e12 : text.ends_with('B') ? 1e9 : 1;
  const auto number = parse_number<double>(unit > 1 ? text.substr(0, text.size() - 1) : text);
  if (!number || !(*number * unit >= 1) || *number * unit > most_tokens) {
    throw UsageError(fmt::format(
        "--train-tokens: '{}' is no number of tokens up to {:g}; give one such as 15T, 500B or "
        "1.5e13",
        text, most_tokens));
  }
  return *number * unit;
}

double price_of(const std::string& text) {
  const auto number = parse_number<double>(text);
  if (!number || !(*number > 0) || *number > most_price) {
    throw UsageError(
        fmt::format("--gpu-hour-price: '{}' is no price above 0 and up to {:g}; give a number such "
                    "as 2.50, in any currency",
                    text, most_price));
  }
  return *number;
}

}  // namespace

double RunCost::gpu_hours(const TrainingStep& step) const {
  return step.gpu_hours_per_1e12_tokens() * (tokens.value_or(1e12) / 1e12);
}

double RunCost::days(const TrainingStep& step) const {
  return tokens.value_or(1e12) / step.tokens * step.step_us / us_per_day;
}

double tokens_per_day(const TrainingStep& step) { return step.tokens / step.step_us * us_per_day; }

double RunCost::money(const TrainingStep& step) const { return *price * gpu_hours(step); }

std::vector<Flag> run_cost_flags() {
  return {
      {"train-tokens", "N", "per 1e12",
       "tokens that the whole run trains on, for its GPU hours and days: 15T, 500B, 1.5e13"},
      {"gpu-hour-price", "PRICE", "none",
       "of an hour of one GPU, in any currency, for what the run costs: 2.50; of several --profile "
       "one for all, or one for each: 3,5.5"}};
}

RunCost requested_run_cost(const CommandLine& line) {
  RunCost cost;
  if (line.has("train-tokens")) cost.tokens = tokens_of(line.get("train-tokens"));
  if (line.has("gpu-hour-price")) cost.price = price_of(line.get("gpu-hour-price"));
  return cost;
}

std::vector<std::string> prices_of_each(const CommandLine& line, std::size_t profiles,
                                        std::size_t machines) {
  std::vector<std::string> prices;
  if (!line.has("gpu-hour-price")) return prices;
  const std::string typed = line.get("gpu-hour-price");
  for (const std::string_view price : split(typed, ',')) prices.emplace_back(price);
  for (const std::string& price : prices) price_of(price);
  if (prices.size() == 1 || prices.size() == profiles || prices.size() == machines) return prices;
  throw UsageError(
      fmt::format("--gpu-hour-price {}: {} prices for {} profile{}{}: give one for all, or one for "
                  "each, in the same order",
                  typed, prices.size(), profiles, profiles == 1 ? "" : "s",
                  machines == profiles ? "" : fmt::format(" on {} machines", machines)));
}

void check_run(const RunCost& cost, double tokens_per_step) {
  if (!cost.tokens || *cost.tokens >= tokens_per_step) return;
  throw UsageError(fmt::format(
      "--train-tokens {:.0f}: one step has {} tokens (--global-batch x --sequence-length): give "
      "those of the whole run, such as 15T or 500B",
      *cost.tokens, grouped(tokens_per_step)));
}

std::string run_text(const RunCost& cost) {
  if (!cost.tokens) return "per 1e12 tokens";
  if (*cost.tokens >= 1e12) return fmt::format("for {:g} trillion tokens", *cost.tokens / 1e12);
  if (*cost.tokens >= 1e9) return fmt::format("for {:g} billion tokens", *cost.tokens / 1e9);
  return fmt::format("for {} tokens", grouped(*cost.tokens));
}

std::string cost_text(const RunCost& cost, const TrainingStep& step) {
  std::string text = fmt::format("{} GPU hours {}", grouped(cost.gpu_hours(step)), run_text(cost));
  if (cost.tokens) text += fmt::format(", {:.1f} days", cost.days(step));
  if (cost.price) {
    text += fmt::format("; {} at {:g} a GPU hour", grouped(cost.money(step)), *cost.price);
  }
  return text;
}

std::vector<CostFigure> cost_figures(const RunCost& cost, const TrainingStep& step) {
  std::vector<CostFigure> figures = {{"GPU hours", cost.gpu_hours(step), grouped}};
  const auto in_days = [](double days) { return fmt::format("{:.1f}", days); };
  if (cost.tokens) figures.push_back({"days", cost.days(step), in_days});
  if (cost.price) figures.push_back({"cost", cost.money(step), grouped});
  return figures;
}

std::vector<std::pair<std::string, Cell>> cost_cells(const RunCost& cost, const TrainingStep& step,
                                                     double low, double high) {
  std::vector<std::pair<std::string, Cell>> cells;
  const auto add = [&](const std::string& name, double figure) {
    cells.emplace_back(name, figure_cell(figure));
    cells.emplace_back(name + "_low", figure_cell(low * figure));
    cells.emplace_back(name + "_high", figure_cell(high * figure));
  };
  if (cost.tokens) {
    cells.emplace_back("train_tokens", figure_cell(*cost.tokens));
    add("run_days", cost.days(step));
  }
  if (cost.price) {
    cells.emplace_back("gpu_hour_price", figure_cell(*cost.price));
    add(cost.tokens ? "run_cost" : "cost_per_1e12_tokens", cost.money(step));
  }
  return cells;
}

}  // namespace moesim::tool
