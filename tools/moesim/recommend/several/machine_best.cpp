#include "tools/moesim/recommend/several/machine_best.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/text.hpp"
#include "tools/moesim/recommend/tables/search_texts.hpp"

namespace moesim::tool {
namespace {

using Machines = std::vector<const MachineBest*>;
using uncertainty::BandLevel;

// "0.00643", "6.40", "64.0", "1,234": at least three digits.
std::string price_text(double price) {
  if (price >= 1000) return grouped(price);
  if (price < 1) return fmt::format("{:.3g}", price);
  return fmt::format("{:.{}f}", price, price < 10 ? 2 : price < 100 ? 1 : 0);
}

constexpr const char* within_noise = "within the noise";

bool has_prices(const Machines& machines) {
  return machines.front()->best.band.cost.price.has_value();
}

// "; 50 %: 5.90 to 6.90, 90 %: 5.00 to 8.10": of the narrowest and the widest level; "": none.
std::string ranges_text(const study::BreakEven& at, std::string (*text)(double)) {
  if (at.ranges.empty()) return "";
  const auto range = [&](const study::BreakEven::Range& each) {
    return fmt::format("{:.0f} %: {} to {}", 100 * each.level, text(each.low), text(each.high));
  };
  return fmt::format("; {}, {}", range(at.ranges.back()), range(at.ranges.front()));
}

std::string times_text(double times) { return fmt::format("{:.2f}", times); }

// What is known of the ratio of a machine to the first.
std::string ratio_lines(const MachineBest& machine, const MachineBest& first) {
  const PlaceRatio ratio = place_ratio(machine.placed(), first.placed());
  const std::vector<BandLevel>& levels = ratio.known.band.levels;
  const study::BreakEven speeds = study::break_even(1, ratio.speed, levels);
  std::string text =
      fmt::format("{} is {} times as fast per GPU as {}{}", machine.machine,
                  times_text(ratio.speed), first.machine, ranges_text(speeds, times_text));
  if (levels.empty()) {
    text += fmt::format("; no band is known: {}\n", ratio.not_known);
  } else {
    const std::optional<double> chance = study::token_cost(1, ratio.speed, levels).chance;
    text +=
        fmt::format("; {}\n  by {}\n",
                    chance ? fmt::format("{} at all with {}", ratio.speed > 1 ? "faster" : "slower",
                                         chance_text(*chance))
                           : within_noise,
                    ratio.known.known_by);
  }
  if (!first.best.band.cost.price) {
    return text +
           fmt::format(
               "  it is cheaper per token while its GPU hour costs less than {} times one of "
               "{}{}\n",
               times_text(ratio.speed), first.machine, ranges_text(speeds, times_text));
  }
  const study::BreakEven prices = study::break_even(first.price(), ratio.speed, levels);
  return text +
         fmt::format("  it is cheaper per token below {} per GPU hour when {} costs {:g}{}\n",
                     price_text(prices.price), first.machine, first.price(),
                     ranges_text(prices, price_text));
}

// Where no price is given, at the same price as the others.
double cost_of_token(const MachineBest& machine) {
  return machine.price() / machine.best.best.step.tokens_per_second_per_gpu;
}

const MachineBest& cheapest_of(const Machines& machines) {
  return **std::min_element(machines.begin(), machines.end(),
                            [](const MachineBest* one, const MachineBest* other) {
                              return cost_of_token(*one) < cost_of_token(*other);
                            });
}

// "h200-sxm costs 71.0 % more; dearer at all with a chance of 95 % or more".
std::string dearer_text(const MachineBest& dear, const MachineBest& cheapest) {
  const PlaceRatio ratio = place_ratio(dear.placed(), cheapest.placed());
  const study::TokenCost cost =
      study::token_cost(dear.price() / cheapest.price(), ratio.speed, ratio.known.band.levels);
  const std::string sure = ratio.known.band.levels.empty() ? "how sure that is is not known"
                           : cost.chance ? "dearer at all with " + chance_text(*cost.chance)
                                         : std::string("that is ") + within_noise;
  return fmt::format("{} costs {:.1f} % more; {}", dear.machine, 100 * (cost.ratio - 1), sure);
}

std::string verdict(const Machines& machines) {
  const MachineBest& cheapest = cheapest_of(machines);
  std::string text =
      fmt::format("cheapest per token{}: {}\n",
                  has_prices(machines) ? "" : ", all at one price of a GPU hour", cheapest.machine);
  for (const MachineBest* each : machines) {
    if (each != &cheapest) text += fmt::format("  {}\n", dearer_text(*each, cheapest));
  }
  return text;
}

}  // namespace

std::string prices_text(const Machines& machines) {
  if (machines.size() < 2) {
    return fmt::format("only {} has a layout: there is nothing to compare\n",
                       machines.front()->machine);
  }
  std::string text;
  for (std::size_t at = 1; at < machines.size(); ++at) {
    text += ratio_lines(*machines[at], *machines.front());
  }
  return text + verdict(machines);
}

void add_price_cells(const MachineBest& machine, const Machines& machines, NamedCells& row) {
  const MachineBest& first = *machines.front();
  const bool is_first = &machine == &first;
  const PlaceRatio ratio = place_ratio(machine.placed(), first.placed());
  const std::vector<BandLevel> levels =
      is_first ? std::vector<BandLevel>() : ratio.known.band.levels;
  const study::BreakEven prices = study::break_even(first.price(), ratio.speed, levels);
  const study::TokenCost cost =
      study::token_cost(machine.price() / first.price(), ratio.speed, levels);
  const auto add = [&](const char* name, bool is_known, double figure) {
    row.add(name, is_known ? figure_cell(figure) : Cell());
  };
  // Of the widest level and of the narrowest, 50 %.
  const auto add_ends = [&](const std::string& name, const study::BreakEven& at) {
    const bool known = !at.ranges.empty();
    const study::BreakEven::Range widest = known ? at.ranges.front() : study::BreakEven::Range{};
    const study::BreakEven::Range middle = known ? at.ranges.back() : study::BreakEven::Range{};
    add((name + "_low").c_str(), known, widest.low);
    add((name + "_high").c_str(), known, widest.high);
    add((name + "_p25").c_str(), known, middle.low);
    add((name + "_p75").c_str(), known, middle.high);
  };
  row.add("compared_with", is_first ? Cell() : Cell(first.machine));
  add("speed_ratio", !is_first, ratio.speed);
  add_ends("speed_ratio", study::break_even(1, ratio.speed, levels));
  add("speed_ratio_level", !levels.empty(), levels.empty() ? 0 : levels.front().level);
  if (has_prices(machines)) {
    add("break_even_price", !is_first, prices.price);
    add_ends("break_even_price", prices);
  }
  add("token_cost_ratio", !is_first, cost.ratio);
  add("token_cost_chance", cost.chance.has_value(), cost.chance.value_or(0));
  row.add("cheapest", &machine == &cheapest_of(machines));
}

}  // namespace moesim::tool
