#include "tools/moesim/sweep/sweep_warnings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "sim/report/formats.hpp"
#include "sim/step/memory.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/scenario/evaluate_scenario.hpp"

namespace moesim::tool {
namespace {

// The routers of each k (experts per token), by their rows. Left out are those of several k, which
// were asked for, and soft, which mixes all tokens.
std::map<std::string, std::vector<std::string>> routers_by_k(const std::vector<study::Row>& rows) {
  const std::size_t router = study::column_index("router");
  const std::size_t k = study::column_index("top_k");
  std::map<std::string, std::set<std::string>> ks;
  for (const study::Row& row : rows) {
    const std::string text = report::text_of(row[k]);
    const std::string name = report::text_of(row[router]);
    if (!is_refused(row) && !text.empty() && name != "soft") ks[name].insert(text);
  }
  std::map<std::string, std::vector<std::string>> routers;
  for (const auto& [name, its] : ks) {
    if (its.size() == 1) routers[*its.begin()].push_back(name);
  }
  return routers;
}

// The k that most routers have; more than one: as many routers each.
std::vector<std::string> most_common_k(
    const std::map<std::string, std::vector<std::string>>& routers) {
  std::size_t most = 0;
  for (const auto& [k, names] : routers) most = std::max(most, names.size());
  std::vector<std::string> found;
  for (const auto& [k, names] : routers) {
    if (names.size() == most) found.push_back(k);
  }
  return found;
}

}  // namespace

void note_usual_groups(const scenario::OptionValues& typed,
                       const std::vector<const scenario::Scenario*>& scenarios) {
  if (!typed.contains("gpus") || typed.contains("expert-parallel")) return;
  std::map<int, std::set<int>> gpus_of_size;
  std::set<int> larger;
  for (const scenario::Scenario* one : scenarios) {
    if (!one->has_moe()) continue;
    gpus_of_size[one->expert_parallel].insert(one->gpus);
    const bool divides = one->gpus > one->expert_parallel && one->experts % one->gpus == 0;
    if (divides) larger.insert(one->gpus);
  }
  for (const auto& [size, gpus] : gpus_of_size) {
    if (gpus.size() < 2) continue;
    note(fmt::format(
        "note: --expert-parallel {} on {} GPUs alike, the default: {} GPUs are {} "
        "groups of {}{}",
        size, fmt::join(gpus, ", "), *gpus.rbegin(), *gpus.rbegin() / size, size,
        larger.empty()
            ? ""
            : fmt::format("; for larger groups: --expert-parallel {}", fmt::join(larger, ","))));
  }
}

void warn_of_too_large(const std::vector<study::SweepPoint>& points) {
  const scenario::Scenario* nearest = nullptr;
  Bytes least;
  std::size_t too_large = 0;
  std::size_t known = 0;
  for (const study::SweepPoint& point : points) {
    if (!point.scenario || !point.refusal.empty() || point.repeats) continue;
    const scenario::Scenario* const scenario = &*point.scenario;
    ++known;
    const Bytes need = step::memory_footprint(*scenario, 0, {}).total();
    if (need <= scenario->profile->device().hbm_bytes) continue;
    ++too_large;
    if (nearest != nullptr && least <= need) continue;
    nearest = scenario;
    least = need;
  }
  if (nearest == nullptr) return;
  study::Outcome outcome;
  const std::int64_t rows =
      nearest->has_moe() ? nearest->tokens_per_gpu * nearest->router.choices() : 0;
  outcome.rows = {rows, rows, rows, 0};
  outcome.memory_gib = step::memory_footprint(*nearest, 0, outcome.rows).total().gib();
  // The least holds whatever the routing is, without rows of experts; what would help is told with
  // an even load.
  constexpr double same_gib = 0.05;
  const std::string evenly =
      outcome.memory_gib - least.gib() < same_gib
          ? ":"
          : fmt::format(", with an even load of the experts, takes {:.1f} GiB;",
                        outcome.memory_gib);
  note(fmt::format(
      "warning: {} of {} scenarios cannot fit: at least {:.1f} GiB per GPU, {:.0f} GiB on {}; the "
      "smallest of them{} {}",
      too_large, known, least.gib(), nearest->profile->device().hbm_bytes.gib(),
      nearest->profile_name, evenly, memory_hint_text(*nearest, outcome)));
}

bool is_refused(const study::Row& row) { return row[0] != Cell("ok"); }

std::size_t warn_of_refused(const std::vector<study::Row>& rows) {
  const auto refused =
      static_cast<std::size_t>(std::count_if(rows.begin(), rows.end(), is_refused));
  if (refused == 0) return 0;
  const study::Row& first = *std::find_if(rows.begin(), rows.end(), is_refused);
  note(
      fmt::format("warning: {} of {} scenarios were refused (columns status and reason); the "
                  "first: {}",
                  refused, rows.size(), report::text_of(first[1])));
  return refused;
}

void warn_of_unfit(const std::vector<study::Row>& rows) {
  const std::size_t fits = study::column_index("fits_memory");
  const auto unfit = std::count_if(rows.begin(), rows.end(),
                                   [&](const study::Row& row) { return row[fits] == Cell(false); });
  if (unfit == 0) return;
  const std::size_t profile = study::column_index("profile");
  std::set<std::string> profiles;  // whose memory is too small
  for (const study::Row& row : rows) {
    if (row[fits] == Cell(false)) profiles.insert(report::text_of(row[profile]));
  }
  note(
      fmt::format("warning: {} of {} scenarios do not fit in the memory of a GPU (that of the "
                  "profile{} {}; column fits_memory); charts draw them pale and hollow, or with "
                  "--fits-only not at all",
                  unfit, rows.size(), profiles.size() == 1 ? "" : "s", fmt::join(profiles, ", ")));
}

void note_high_mfu(const std::vector<study::Row>& rows) {
  const std::size_t mfu = study::column_index("mfu");
  const auto high = std::count_if(rows.begin(), rows.end(), [&](const study::Row& row) {
    return !is_absent(row[mfu]) && number_in(row[mfu]) > 1;
  });
  if (high == 0) return;
  note(fmt::format("note: {} of {} scenarios have an mfu above 1, which is no error: {}", high,
                   rows.size(), mfu_counts_dropped));
}

void warn_of_differing_k(const std::vector<study::Row>& rows) {
  const auto routers = routers_by_k(rows);
  if (routers.size() < 2) return;
  const std::vector<std::string> usual = most_common_k(routers);
  std::string others;
  for (const auto& [k, names] : routers) {
    if (usual == std::vector{k}) continue;
    for (const std::string& name : names) {
      const bool is_named = name.substr(0, name.find('+')) == "top" + k;
      if (!is_named) others += fmt::format("{}{} (k = {})", others.empty() ? "" : ", ", name, k);
    }
  }
  if (others.empty()) return;
  note(fmt::format(
      "warning: not of the same k as the other routers{}: {}; token loss is a "
      "share of the weight of a token's own k experts, so do not compare it between them",
      usual.size() == 1 ? fmt::format(" (k = {})", usual.front()) : "", others));
}

}  // namespace moesim::tool
