#include "sim/scenario/software.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "sim/base/error.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::scenario {

void check_expert_products(const Scenario& scenario, Use use) {
  if (use == Use::routing || !scenario.has_moe()) return;
  if (scenario.expert_products != ExpertProducts::fused) return;
  const auto refuse = [](const std::string& why) {
    throw UsageError(
        fmt::format("--expert-products fused: {}; or choose --expert-products batched", why));
  };
  if (scenario.mode != Mode::prefill) {
    refuse("its kernels have no backward pass: add --mode prefill");
  }
  if (!scenario.model->gated) refuse("its kernels have a gated activation, this model has none");
  if (scenario.dispatch == Dispatch::einsum) {
    refuse("its kernels gather rows by index: use --dispatch index");
  }
  const routing::RouterConfig& router = scenario.router;
  if (router.rectification != routing::Rectification::none &&
      router.ir_compute == routing::IrCompute::grouped) {
    refuse("rows of IR have a call of their own: use --ir-compute separate or overlap");
  }
  try {  // whether the profile has a curve for experts of this shape
    const std::int64_t rows = scenario.tokens_per_gpu * router.choices();
    scenario.profile->expert_ffn(std::max<std::int64_t>(rows, 1), scenario.model->hidden,
                                 scenario.model->moe->expert_ffn,
                                 scenario.experts / scenario.expert_parallel);
  } catch (const Error& error) {
    refuse(error.what());
  }
}

}  // namespace moesim::scenario
