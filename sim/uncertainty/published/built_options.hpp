#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace moesim::uncertainty {

struct Residuals;
struct Subject;

// How the software of a step is built: values of options by their names, {"gradients", "bf16"}.
using BuiltOptions = std::map<std::string, std::string>;

// What the measured steps of a software that were built most like a step have otherwise.
struct NearestBuild {
  bool of_model = false;  // steps of the same model; else of others on the machine
  BuiltOptions differing;
};

// Among the measured steps of the software and machine of `asked`: those of its model if there are
// any, and of these those of its precision (bf16, or lower). The nearest differs in fewest options;
// those in `typed`, which somebody chose, count before all others and are not among `differing`.
// Only builds whose differing options the step `can_have`, all at once. Nothing where no group of
// steps tells how its software is built, or the step can have none of these builds.
std::optional<NearestBuild> nearest_build(
    const Residuals& residuals, const Subject& asked, const BuiltOptions& options,
    const std::set<std::string>& typed,
    const std::function<bool(const BuiltOptions& differing)>& can_have);

}  // namespace moesim::uncertainty
