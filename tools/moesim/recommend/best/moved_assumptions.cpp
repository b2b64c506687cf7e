#include "tools/moesim/recommend/best/moved_assumptions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "sim/base/no_answer.hpp"
#include "sim/base/parallel.hpp"
#include "sim/base/statistics.hpp"
#include "sim/cluster/measured_between.hpp"
#include "sim/report/formats.hpp"
#include "sim/routing/scores/unknown_popularity.hpp"
#include "sim/study/search/drawn_routings.hpp"
#include "sim/training/step/layer_time.hpp"
#include "tools/moesim/recommend/request/search_room.hpp"

namespace moesim::tool {
namespace {

using study::FoundStep;
using training::TrainingJob;

constexpr std::size_t most_moved = 20;  // of a long list the first
constexpr double least_lead = 0.001;    // what is ahead by less is not called faster
constexpr double host_factor = 2;       // what uncertainty::terms_of() assumes that it is known to

// What is taken for granted, at another value.
struct Moved {
  std::string where;                                 // "host costs doubled"
  std::function<bool(TrainingJob& job)> apply;       // false: cannot be
  bool is_routing = false;                           // other routings have to be drawn
  std::vector<std::optional<FoundStep>> steps = {};  // [place]; nothing: cannot be simulated
};

// The times that were given stay: they are not assumed.
Moved host_times(const training::HostCosts& host, double factor, const char* how) {
  const char* const what = !host.assumes_read     ? "launches"
                           : !host.assumes_launch ? "reads"
                                                  : "costs";
  return {fmt::format("host {} {}", what, how), [factor](TrainingJob& job) {
            if (job.host.assumes_launch) job.host.launch_us *= factor;
            if (job.host.assumes_read) job.host.sync_us *= factor;
            return true;
          }};
}

// A NIC's efficiency and how long exchanges take to start, at the ends that a cluster's document
// gives them.
Moved nic_at(const cluster::Cluster& cluster, bool fast) {
  cluster::Cluster moved = cluster;
  moved.nic_efficiency = fast ? cluster.nic_efficiency_high : cluster.nic_efficiency_low;
  moved.nic_start.value = fast ? cluster.nic_start.low : cluster.nic_start.high;
  const auto shared = std::make_shared<const cluster::Cluster>(std::move(moved));
  return {fmt::format("NICs at {:.0f} % of their rate", 100 * shared->nic_efficiency),
          [shared](TrainingJob& job) {
            job.cluster = shared;
            return true;
          }};
}

bool is_uncertain(const cluster::Cluster& cluster, bool fast) {
  return fast ? cluster.nic_efficiency_high > cluster.nic_efficiency ||
                    cluster.nic_start.low < cluster.nic_start.value
              : cluster.nic_efficiency_low < cluster.nic_efficiency ||
                    cluster.nic_start.high > cluster.nic_start.value;
}

// As uneven as in this share of recorded trainings at most.
Moved experts_at(const RecommendRequest& request, double share) {
  const routing::PopularitySpreads& spreads = routing::balanced_spreads;
  const double sigma =
      std::round(100 * spreads.median * std::exp(normal_quantile(share) * spreads.trainings)) / 100;
  return {fmt::format("experts as uneven as gaussian:{:g}", sigma),
          [&request, sigma](TrainingJob& job) {
            if (!job.routing) job = request.drawn(job);
            if (!job.routing || job.routing->scores.kind != routing::ScoreSource::Kind::gaussian) {
              return false;
            }
            job.routing->scores.parameter = sigma;
            return true;
          },
          true};
}

bool crosses_nics(const TrainingJob& job) {
  const auto crossing = training::crossing_parts(job);
  return std::any_of(crossing.begin(), crossing.end(), [](bool crosses) { return crosses; });
}

std::vector<Moved> assumptions_of(const RecommendRequest& request,
                                  const std::vector<FoundStep>& best) {
  const TrainingJob& base = request.search.space.base;
  std::vector<Moved> all;
  if (base.host.assumes_launch || base.host.assumes_read) {
    all.push_back(host_times(base.host, 1 / host_factor, "halved"));
    all.push_back(host_times(base.host, host_factor, "doubled"));
  }
  const bool crosses = std::any_of(best.begin(), best.end(),
                                   [](const FoundStep& found) { return crosses_nics(found.job); });
  // Exchanges that were measured between its domains do not ask for its efficiency.
  if (crosses && !cluster::measured_between_domains(*base.cluster)) {
    for (const bool fast : {false, true}) {
      if (is_uncertain(*base.cluster, fast)) all.push_back(nic_at(*base.cluster, fast));
    }
  }
  if (base.model->moe) all.push_back(experts_at(request, 0.9));
  return all;
}

void simulate(const RecommendRequest& request, const std::vector<FoundStep>& best,
              study::DrawnRoutings& draws, Moved& moved) {
  moved.steps.resize(std::min(best.size(), most_moved));
  parallel_for(moved.steps.size(), request.search.jobs, [&](std::size_t at) {
    FoundStep found = best[at];
    found.predicted.reset();
    try {
      if (!moved.apply(found.job)) return;
      const auto loads = found.job.routing ? draws.loads(found.job) : nullptr;
      study::set_step(request.search, training::training_step(found.job, loads, false), found);
      moved.steps[at] = std::move(found);
    } catch (const NotMeasured&) {
      // The machine has no price for it then: it is not compared,
    } catch (const UsageError&) {
      // or its groups cannot be drawn.
    }
  });
}

bool fits(const FoundStep& found, const study::TrainingSearch& search) {
  return found.step.peak_memory().gib() <= room_gib(search);
}

// Why a step is then none to recommend; "": it is one.
std::string fault_of(const FoundStep& found, const study::TrainingSearch& search) {
  if (!fits(found, search)) {
    return fmt::format("no longer fits: {:.2f} of {:.2f} GiB", found.step.peak_memory().gib(),
                       room_gib(search));
  }
  if (found.loss > search.max_loss) {
    return fmt::format("loses {:.1f} %, more than {:g} %", 100 * found.loss, 100 * search.max_loss);
  }
  return "";
}

// The place of the fastest to recommend; behind the last where there is none.
std::size_t fastest(const Moved& moved, const study::TrainingSearch& search) {
  std::size_t found = moved.steps.size();
  for (std::size_t at = 0; at < moved.steps.size(); ++at) {
    const auto& step = moved.steps[at];
    if (!step || !fault_of(*step, search).empty()) continue;
    const bool is_first = found == moved.steps.size();
    if (is_first || (1 + least_lead) * step->step.step_us < moved.steps[found]->step.step_us) {
      found = at;
    }
  }
  return found;
}

// The place of the fastest step that drops out for want of memory alone, not the first, where it is
// faster than the fastest that is left; the number of steps where there is none.
std::size_t fastest_without_room(const Moved& moved, std::size_t fastest_at,
                                 const study::TrainingSearch& search) {
  const bool is_any = fastest_at < moved.steps.size();
  std::size_t found = moved.steps.size();
  for (std::size_t at = 1; at < moved.steps.size(); ++at) {
    const auto& step = moved.steps[at];
    if (!step || fits(*step, search) || step->loss > search.max_loss) continue;
    const std::size_t best = found < moved.steps.size() ? found : fastest_at;
    const bool is_first = found == moved.steps.size() && !is_any;
    if (is_first || (1 + least_lead) * step->step.step_us < moved.steps[best]->step.step_us) {
      found = at;
    }
  }
  return found;
}

std::string speed_text(const FoundStep& found) {
  return fmt::format("{:.0f}", found.step.tokens_per_second_per_gpu);
}

// A line of the table: what moves, the fastest then and its speed, that of the first, by how much
// it changes, why another is before it, and which would be but for its memory.
std::vector<std::string> cells_of(const Moved& moved, std::size_t fastest_at,
                                  const FoundStep& today, const study::TrainingSearch& search) {
  const FoundStep& first = *moved.steps.front();
  const bool is_any = fastest_at < moved.steps.size();
  std::string why = fault_of(first, search);
  if (!why.empty()) {
    why = "1 " + why;
  } else if (fastest_at > 0) {
    const double ahead = first.step.step_us / moved.steps[fastest_at]->step.step_us - 1;
    why = fmt::format("{:.1f} % faster than 1", 100 * ahead);
  }
  const std::size_t too_large = fastest_without_room(moved, fastest_at, search);
  if (too_large < moved.steps.size()) {
    why += fmt::format("{}{} {}", why.empty() ? "" : "; ", too_large + 1,
                       fault_of(*moved.steps[too_large], search));
  }
  const double change =
      first.step.tokens_per_second_per_gpu / today.step.tokens_per_second_per_gpu - 1;
  return {"  " + moved.where,
          is_any ? fmt::format("{}", fastest_at + 1) : "none",
          is_any ? speed_text(*moved.steps[fastest_at]) : "",
          speed_text(first),
          fmt::format("{:+.1f}", 100 * change),
          why};
}

std::string times_to_give(const training::HostCosts& host) {
  if (host.assumes_launch && host.assumes_read)
    return "--launch-us and --host-read-us of a trace, ";
  if (host.assumes_launch) return "--launch-us of a trace, ";
  return host.assumes_read ? "--host-read-us of a trace, " : "";
}

}  // namespace

std::string assumptions_text(const RecommendRequest& request, const std::vector<FoundStep>& best) {
  if (best.size() < 2 || request.search.software) return "";
  study::DrawnRoutings& same = *request.search.drawn;  // host and NICs do not change the routing
  std::vector<std::vector<std::string>> lines = {
      {"  assumption", "fastest", "tokens/s/GPU", "those of 1", "change %", ""}};
  bool others = false;
  for (Moved& moved : assumptions_of(request, best)) {
    study::DrawnRoutings other;
    simulate(request, best, moved.is_routing ? other : same, moved);
    if (!moved.steps.front()) continue;
    const std::size_t first = fastest(moved, request.search);
    others = others || first != 0;
    lines.push_back(cells_of(moved, first, best.front(), request.search));
  }
  if (lines.size() == 1) return "";
  std::string text = "the fastest of these if one assumption moves:\n" +
                     report::align(lines, {false, true, true, true, true, false});
  if (!others) return text;
  return text +
         fmt::format("  (to know better: {}moesim import of nccl-tests, --routing counts:FILE)\n",
                     times_to_give(request.search.space.base.host));
}

}  // namespace moesim::tool
