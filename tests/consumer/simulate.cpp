// The step of LLaMA2-7B with 8 experts on 16 A100s, simulated from C++: as
//   moesim simulate --gpus 16 --router top2+fr --capacity-factor 1 --mode prefill --replicas 2
#include <cstdio>
#include <exception>

#include "sim/scenario/options.hpp"
#include "sim/study/sweep/outcome.hpp"

int main() {
  using namespace moesim;
  try {
    scenario::DocumentCache documents;  // profiles, models and clusters, each read once
    scenario::OptionValues options{{"gpus", "16"},
                                   {"router", "top2+fr"},
                                   {"capacity-factor", "1"},
                                   {"mode", "prefill"},
                                   {"replicas", "2"}};
    const scenario::Scenario scenario = scenario::resolve(options, documents);

    routing::RoutingCache cache;  // scenarios that route alike share its results
    const study::Outcome outcome = study::evaluate(scenario, cache);

    std::printf("step %.6f ms, %.0f tokens/s per GPU, %.4f of the tokens' choices lost, %.1f GiB\n",
                outcome.step_ms, outcome.tokens_per_s_per_gpu, outcome.loss.failed,
                outcome.memory_gib);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
