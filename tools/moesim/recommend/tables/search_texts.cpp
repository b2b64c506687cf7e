#include "tools/moesim/recommend/tables/search_texts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "sim/base/text.hpp"
#include "sim/training/drawn/block_routing.hpp"
#include "tools/moesim/train/train_report.hpp"

namespace moesim::tool {
namespace {

using study::TrainingSearch;

// Megatron's factors are 1 at balance, those of the paper k.
std::string convention_text(const routing::RouterConfig& router) {
  const bool library = router.capacity_convention == routing::CapacityConvention::library;
  std::string text =
      fmt::format("CF: {} convention, balanced load at CF {}",
                  routing::name_of(router.capacity_convention), library ? 1 : router.choices());
  if (router.dialect != routing::Dialect::paper) {
    text += fmt::format(", rounded as {} does", routing::name_of(router.dialect));
  }
  if (router.has_capacity() && !router.pads_exchange()) text += ", not padded";
  return text + " (--capacity-convention, --router-dialect)\n";
}

// "trace:run (16 of 84 recorded steps, evenly spread)"
std::string source_text(const TrainingSearch& search, const training::DrawnRouting& routing) {
  std::string name = routing.scores.name();
  const bool is_recorded = routing.scores.trace != nullptr;
  if (!is_recorded || routing.draws == training::RoutingDraws::per_micro_batch) return name;
  training::TrainingJob job = search.space.base;
  job.routing = routing;
  std::vector<int> taken = training::drawn_replicas(job);
  for (int& step : taken) ++step;
  return fmt::format("{} ({})", name, taken_steps_text(taken, routing.scores.trace->shape().steps));
}

}  // namespace

std::string front_name(std::size_t place) {
  std::string name;
  for (std::size_t left = place + 1; left > 0; left = (left - 1) / 26) {
    name.insert(name.begin(), static_cast<char>('a' + (left - 1) % 26));
  }
  return name;
}

std::string count_text(std::size_t count) { return grouped(static_cast<double>(count)); }

std::string step_text(double us) {
  const double ms = us / 1e3;
  return ms < 1e4 ? fmt::format("{:.0f} ms", ms) : fmt::format("{:.1f} s", ms / 1e3);
}

std::string places_text(const std::vector<std::size_t>& numbers) {
  std::string text;
  for (std::size_t at = 0; at < numbers.size(); ++at) {
    if (at > 0) text += at + 1 == numbers.size() ? " and " : ", ";
    text += fmt::format("{}", numbers[at]);
  }
  return text;
}

std::string chance_text(double chance) {
  return fmt::format("a chance of {:.0f} % or more", 100 * chance);
}

std::string given_up_text(double speed, double gib, double loss) {
  std::vector<std::string> parts;
  if (speed <= 1) parts.push_back(fmt::format("{:.1f} % speed", 100 * (1 - speed)));
  if (gib >= 0.5) parts.push_back(fmt::format("{:.0f} GiB", gib));
  if (loss >= 5e-5) parts.push_back(fmt::format("{:.2f} % of tokens' weight", 100 * loss));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string precisions_text(const TrainingSearch& search) {
  std::vector<const char*> names;
  for (const auto each : search.space.precision) names.push_back(model::name_of(each));
  return fmt::format("{}", fmt::join(names, " or "));
}

std::string least_memory_text(const study::TrainingFound& found) {
  return fmt::format("the least takes {:.1f} GiB", found.smallest_memory.gib());
}

// Which routers and capacity factors were searched, with which routing. Forced balance is what real
// routers do not have.
std::string routing_line(const TrainingSearch& search) {
  if (!search.space.base.model->moe) return "";
  const auto& routings = search.space.routings;
  std::vector<std::string> searched;
  std::set<std::string> sources;
  std::string convention;
  std::string last;
  for (const auto& routing : routings) {
    if (!routing) continue;
    sources.insert(source_text(search, *routing));
    const routing::RouterConfig& router = routing->router;
    const std::string name = router.name();
    if (!router.drops) {
      searched.push_back(name == "dropless" ? name : name + " without capacity");
    } else if (name == last) {
      searched.back() += "/" + router.capacity_factor.text();
    } else {
      searched.push_back(fmt::format("{} at CF {}", name, router.capacity_factor.text()));
    }
    if (router.drops) convention = convention_text(router);
    last = router.drops ? name : "";
  }
  if (searched.empty()) {
    return "routing: forced balance, as in benchmarks (--routing-draws per-layer draws it)\n";
  }
  return fmt::format(
      "routing drawn, {}; searched: {} (others: --router, --capacity-factor); loss at most {:g} "
      "%\n{}",
      fmt::join(sources, ", "), fmt::join(searched, ", "), 100 * search.max_loss, convention);
}

}  // namespace moesim::tool
