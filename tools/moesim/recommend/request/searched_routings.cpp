#include "tools/moesim/recommend/request/searched_routings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "sim/job/drawn_routing.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/recommend/request/recommend_flags.hpp"
#include "tools/moesim/scenario/scenario_notes.hpp"

namespace moesim::tool {
namespace {

using study::TrainingSpace;
using training::TrainingJob;

constexpr const char* dropless = "dropless";
constexpr const char* usual_factors[] = {"0.5", "0.75", "1", "1.05", "1.1", "1.25", "1.5"};
// With these, routing is drawn whatever --max-loss says.
constexpr const char* drawing_flags[] = {"router", "capacity-factor", "routing", "routing-draws"};
constexpr const char* rectifications[] = {"+fr", "+ir", "+fr+ir"};

// Notes on the routings of a search: each once, and an option is without effect only if it has
// none on any of them.
class SearchNotes {
 public:
  void add(const std::string& text) {
    if (std::find(texts_.begin(), texts_.end(), text) == texts_.end()) texts_.push_back(text);
  }
  void add(const job::RoutingNotes& notes) {
    for (const std::string& text : notes.replaced) add(text);
    for (const std::string& text : notes.scores) add(text);
    for (const std::string& text : notes.priority) add(text);
    if (routings_++ == 0) idle_ = notes.idle;
    std::erase_if(idle_, [&](const scenario::IdleOption& idle) {
      return std::find(notes.idle.begin(), notes.idle.end(), idle) == notes.idle.end();
    });
  }
  // `of_row`: options that nobody typed.
  void print(const std::set<std::string>& of_row) const {
    for (const std::string& text : texts_) note(text);
    for (const scenario::IdleOption& idle : idle_) {
      if (!of_row.contains(idle.option)) note_idle_option(idle);
    }
  }

 private:
  int routings_ = 0;
  std::vector<std::string> texts_;
  std::vector<scenario::IdleOption> idle_;
};

// The routers that are searched unless some are asked for: where tokens may be lost, what rectifies
// the model's own, or the one that takes its place at a capacity factor. "": the model's own.
std::vector<std::string> usual_routers(const CommandLine& line, const TrainingJob& base,
                                       bool may_lose, scenario::DocumentCache& documents) {
  std::vector<std::string> routers = {""};
  if (!may_lose || !base.model->moe || line.get("capacity-factor") == dropless) return routers;
  CommandLine one = line;
  one.values["capacity-factor"] = "1";
  job::RoutingNotes ignored;
  const std::optional<training::DrawnRouting> routing =
      job::drawn_routing(one.values, base, documents, ignored);
  if (!routing) return routers;
  const routing::RouterConfig& router = routing->router;
  const bool is_plain = router.rectification == routing::Rectification::none && !router.fill_in;
  if (!is_plain || !router.has_capacity() || router.name() != fmt::format("top{}", router.top_k)) {
    return routers;
  }
  const std::string name = router.top_k <= 2 ? router.name() : "topk";
  for (const char* each : rectifications) routers.push_back(name + each);
  return routers;
}

// Every route to the k best experts is kept, whatever the router is called.
bool keeps_the_best(const routing::RouterConfig& router) {
  return router.takes_best() && !router.drops && !router.fill_in &&
         router.rectification == routing::Rectification::none;
}

// Whether two routers with the same other options make the same steps.
bool is_same_router(const routing::RouterConfig& one, const routing::RouterConfig& other) {
  if (one.top_k != other.top_k) return false;
  if (keeps_the_best(one) && keeps_the_best(other)) return true;
  return one.name() == other.name() && one.drops == other.drops &&
         (!one.drops || one.capacity_factor == other.capacity_factor);
}

// What says that `router`, as typed, is searched as `first`.
std::string same_router_note(const std::string& router, const std::string& first,
                             const routing::RouterConfig& config) {
  std::string why;
  if (keeps_the_best(config)) {
    why = config.pads_to_busiest() ? ": with --padding busiest both keep every route"
                                   : ": without a capacity both keep every route";
  }
  return fmt::format("note: --router {} makes the same steps as {}, which is searched{}", router,
                     first, why);
}

// Whether some of the routers searched is the model's own.
bool has_own_router(const TrainingSpace& space, const routing::RouterConfig& own) {
  return std::any_of(space.routings.begin(), space.routings.end(), [&](const auto& routing) {
    return !routing || (routing->router.name() == own.name() && routing->router.top_k == own.top_k);
  });
}

// That typed routers leave out a model's own, whose groups or bias others do not have. Among plain
// routers to the k best nothing is left out.
void note_own_router(const CommandLine& line, const TrainingJob& base, const TrainingSpace& space) {
  if (!line.has("router") || !base.model->moe) return;
  const model::MoeBlock& moe = *base.model->moe;
  const routing::RouterConfig own = routing::parse_router(moe.router, 0, moe.top_k);
  if (own.takes_best() || has_own_router(space, own)) return;
  note(fmt::format(
      "note: --router: none of these is the model's own, {}, which spreads tokens over experts and "
      "nodes in its own way: to search it, leave --router out or add it",
      moe.router));
}

}  // namespace

void note_dialect(const CommandLine& line, const TrainingSpace& space) {
  const bool has_capacity =
      std::any_of(space.routings.begin(), space.routings.end(), [](const auto& routing) {
        return routing && routing->router.has_capacity() && routing->router.pads_exchange();
      });
  if (!has_capacity || line.has("router-dialect") || line.has("padding")) return;
  if (!line.has("software") && !line.has("megatron")) return;  // Megatron-LM is not in question
  note(
      "note: capacity is padded, as papers have it; Megatron-LM without "
      "--moe-pad-expert-input-to-capacity sends what is kept: --router-dialect megatron");
}

void take_routings(const CommandLine& line, const TrainingJob& base, bool may_lose,
                   RecommendRequest& request) {
  scenario::DocumentCache& documents = *request.documents;
  const std::vector<std::string> routers =
      line.has("router") ? list_of(line, "router") : usual_routers(line, base, may_lose, documents);
  std::vector<std::string> factors = {dropless};
  if (may_lose && base.model->moe) {
    for (const char* factor : usual_factors) factors.emplace_back(factor);
  }
  if (line.has("capacity-factor")) factors = list_of(line, "capacity-factor");
  // Beside routing that is drawn, forced balance would win by what imbalance costs.
  const bool all_drawn = base.model->moe && (routers.size() > 1 || factors.size() > 1);
  std::vector<std::optional<training::DrawnRouting>>& routings = request.search.space.routings;
  routings.clear();
  SearchNotes notes;
  const auto is_typed = [&](const char* flag) { return line.has(flag); };
  if (all_drawn && std::none_of(std::begin(drawing_flags), std::end(drawing_flags), is_typed)) {
    notes.add(
        "note: --max-loss: routing is drawn for all; without it, balance is forced, and speeds are "
        "higher by what uneven experts cost");
  }
  for (const std::string& router : routers) {
    bool is_there = false;
    for (const std::string& factor : factors) {
      // Without a capacity there is nothing to rectify.
      if (factor == dropless && !line.has("router") && !router.empty()) continue;
      CommandLine one = line;
      for (const char* flag : {"router", "capacity-factor"}) one.values.erase(flag);
      CommandLine chosen;
      if (!router.empty()) chosen.values["router"] = router;
      if (factor != dropless) chosen.values["capacity-factor"] = factor;
      if (all_drawn && chosen.values.empty() && !line.has("routing-draws")) {
        chosen.values["routing-draws"] = "per-layer";
      }
      for (const auto& [flag, value] : chosen.values) one.values[flag] = value;
      job::RoutingNotes of_one;
      std::optional<training::DrawnRouting> routing =
          job::drawn_routing(one.values, base, documents, of_one);
      notes.add(of_one);
      // The same at every factor, and without one.
      const bool is_idle = factor != dropless && routing && !routing->router.has_capacity();
      if (is_idle && is_there) break;
      is_there = true;
      if (is_idle) chosen.values.erase("capacity-factor");
      const auto same = std::find_if(routings.begin(), routings.end(), [&](const auto& other) {
        return routing && other && is_same_router(routing->router, other->router);
      });
      if (same != routings.end()) {
        const auto place = static_cast<std::size_t>(same - routings.begin());
        const std::string first = request.routings[place].get("router");
        if (!router.empty() && first != router) {
          notes.add(same_router_note(router, first, routing->router));
        }
        if (is_idle) break;
        continue;
      }
      routings.push_back(std::move(routing));
      request.routings.push_back(chosen);
      if (is_idle) break;
    }
  }
  notes.print(line.of_row);
  note_own_router(line, base, request.search.space);
}

}  // namespace moesim::tool
