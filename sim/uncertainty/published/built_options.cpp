#include "sim/uncertainty/published/built_options.hpp"

#include <utility>

#include "sim/uncertainty/published/residuals.hpp"

namespace moesim::uncertainty {
namespace {

// The groups of `all` for which `holds`; all where it holds for none.
template <class Holds>
std::vector<const ResidualGroup*> preferred(const std::vector<const ResidualGroup*>& all,
                                            Holds holds) {
  std::vector<const ResidualGroup*> found;
  for (const ResidualGroup* group : all) {
    if (holds(group->subject)) found.push_back(group);
  }
  return found.empty() ? all : found;
}

// Those of `options` that differ from what is asked, where that tells.
BuiltOptions differing(const BuiltOptions& options, const BuiltOptions& asked) {
  BuiltOptions found;
  for (const auto& [name, value] : options) {
    const auto other = asked.find(name);
    if (other != asked.end() && other->second != value) found.emplace(name, value);
  }
  return found;
}

}  // namespace

std::optional<NearestBuild> nearest_build(
    const Residuals& residuals, const Subject& asked, const BuiltOptions& options,
    const std::set<std::string>& typed,
    const std::function<bool(const BuiltOptions& differing)>& can_have) {
  std::vector<const ResidualGroup*> groups;
  for (const ResidualGroup& group : residuals.groups) {
    const Subject& subject = group.subject;
    if (subject.software == asked.software && subject.machine == asked.machine &&
        !group.builds.empty()) {
      groups.push_back(&group);
    }
  }
  if (groups.empty()) return std::nullopt;
  groups = preferred(groups, [&](const Subject& one) { return one.model == asked.model; });
  groups = preferred(groups,
                     [&](const Subject& one) { return one.low_precision == asked.low_precision; });

  std::optional<NearestBuild> nearest;
  std::pair<std::size_t, std::size_t> least;  // options that differ: typed ones, others
  for (const ResidualGroup* group : groups) {
    for (const BuiltOptions& build : group->builds) {
      BuiltOptions apart = differing(build, options);
      const std::size_t all = apart.size();
      for (const std::string& name : typed) apart.erase(name);
      const std::pair distance(all - apart.size(), apart.size());
      if ((nearest && distance >= least) || !can_have(apart)) continue;
      least = distance;
      nearest = {group->subject.model == asked.model, std::move(apart)};
    }
  }
  return nearest;
}

}  // namespace moesim::uncertainty
