#include "kernels/measure/suites/suites.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/measure/suites/attention.hpp"
#include "kernels/measure/suites/attention_backward.hpp"
#include "kernels/measure/suites/collectives.hpp"
#include "kernels/measure/suites/experts.hpp"
#include "kernels/measure/suites/gemm.hpp"
#include "kernels/measure/suites/gemm_fp8.hpp"
#include "kernels/measure/suites/launch.hpp"
#include "kernels/measure/suites/memory.hpp"
#include "kernels/measure/suites/overlap.hpp"
#include "kernels/measure/suites/permute.hpp"
#include "kernels/measure/suites/routing.hpp"
#include "kernels/measure/suites/sustained.hpp"
#include "sim/base/error.hpp"
#include "sim/base/shipped.hpp"

namespace moesim::kernels::measure {

const std::vector<Suite>& all_suites() {
  // In the order in which they run: a run that ends early has what MoE needs. Attention is last, as
  // each of its points is compiled first.
  static const std::vector<Suite> suites = {
      gemm_suite(),    sustained_suite(), memory_suite(),      permute_suite(),
      experts_suite(), routing_suite(),   collectives_suite(), overlap_suite(),
      launch_suite(),  gemm_fp8_suite(),  attention_suite(),   attention_backward_suite()};
  return suites;
}

const Suite& find_suite(const std::string& name) {
  std::vector<std::string> names;
  for (const Suite& suite : all_suites()) {
    if (suite.name == name) return suite;
    names.push_back(suite.name);
  }
  throw UsageError(fmt::format("unknown suite '{}'{}; there are {}", name, suggestion(name, names),
                               fmt::join(names, ", ")));
}

const std::vector<Missing>& always_missing() {
  static const std::vector<Missing> missing = {
      {"layer", "bench_layer_gpu times whole MoE layers, no suite does",
       "moesim validate layer --measured compares them with this profile"},
      {"linear attention", "no suite runs its kernels",
       "moesim train prices it by counted FLOPs and bytes at assumed rates"},
  };
  return missing;
}

}  // namespace moesim::kernels::measure
