#include "kernels/measure/sessions/offers.hpp"

#include <algorithm>
#include <utility>

#include "kernels/measure/suites/suites.hpp"

namespace moesim::kernels::measure {
namespace {

std::string kind_of(const PointSpec& spec) {
  std::string kind = spec.op;
  for (const char* name : {"dtype", "pass"}) {
    if (spec.params.contains(name)) kind += " " + spec.params[name].get<std::string>();
  }
  return kind;
}

// The work that tells small from large among points of one kind.
double size_of(const PointSpec& spec) { return spec.flops + spec.bytes + spec.sent_bytes; }

std::vector<std::pair<std::string, PointSpec>> smallest_of_each_kind(const Suite& suite, int gpus) {
  std::vector<std::pair<std::string, PointSpec>> kinds;
  for (const PointSpec& spec : suite.points(gpus)) {
    const std::string kind = kind_of(spec);
    const auto known = std::find_if(kinds.begin(), kinds.end(),
                                    [&](const auto& entry) { return entry.first == kind; });
    if (known == kinds.end()) {
      kinds.emplace_back(kind, spec);
    } else if (size_of(spec) < size_of(known->second)) {
      known->second = spec;
    }
  }
  return kinds;
}

}  // namespace

std::vector<Offer> examine(Device& device, int gpus,
                           const std::function<void(const std::string&)>& begins) {
  constexpr std::uint64_t seed = 1;
  std::vector<Offer> offers;
  std::string lost;
  for (const Suite& suite : all_suites()) {
    if (gpus < suite.fewest_gpus) continue;
    for (const auto& [kind, spec] : smallest_of_each_kind(suite, gpus)) {
      std::string trouble = lost;
      if (lost.empty()) {
        if (begins) begins(suite.name + ": " + kind);
        try {
          trouble = device.prepare(spec, seed)->verify();
        } catch (const DeviceFailed& error) {
          trouble = lost = error.what();
        } catch (const Error& error) {
          trouble = error.what();
        }
      }
      offers.push_back({suite.name, kind, trouble});
    }
  }
  return offers;
}

}  // namespace moesim::kernels::measure
