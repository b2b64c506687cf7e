#include "kernels/measure/suites/layer_points.hpp"

#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/routing/routers/router_name.hpp"

namespace moesim::kernels::measure {

const std::vector<LayerCase>& layer_cases() {
  // In order of importance, for a run that ends early.
  static const std::vector<LayerCase> cases = {
      {"top2", "2", "index"},        {"top1", "1", "index"},      {"top2", "1", "index"},
      {"top2+ir", "1", "index"},     {"top2", "2", "einsum"},     {"top1", "1", "einsum"},
      {"top2+fr+ir", "1", "index"},  {"top1+ir", "0.5", "index"}, {"top1", "0.5", "index"},
      {"top2+fr", "1", "index"},     {"top1", "2", "index"},      {"top2", "3", "index"},
      {"top1", "3", "index"},        {"top2", "0.5", "index"},    {"top2+ir", "1", "einsum"},
      {"top2+fr+ir", "1.5", "index"}};
  return cases;
}

PointSpec layer_point(const LayerCase& layer, const LayerSize& size, layer::Pass pass) {
  PointSpec spec;
  spec.op = "layer";
  spec.params = {{"router", layer.router},
                 {"capacity_factor", layer.capacity_factor},
                 {"dispatch", layer.dispatch},
                 {"pass", name_of(pass)},
                 {"dtype", "bf16"},
                 {"tokens", size.tokens},
                 {"hidden", size.hidden},
                 {"ffn", size.ffn},
                 {"experts", size.experts},
                 {"gpus", size.gpus}};
  spec.collective = size.gpus > 1;
  const layer::LayerPlan plan = layer::plan_layer(layer_of(spec, 0));
  spec.flops = plan.flops(pass);
  for (const layer::Stage& stage : plan.stages(pass)) {
    (stage.exchange ? spec.sent_bytes : spec.bytes) += stage.bytes;
  }
  spec.sent_bytes *= static_cast<double>(size.gpus - 1) / size.gpus;
  spec.held_bytes = static_cast<double>(plan.memory_bytes());
  return spec;
}

layer::LayerProblem layer_of(const PointSpec& spec, int rank) {
  layer::LayerProblem problem;
  routing::RouterProblem& router = problem.router;
  router.config = ::moesim::routing::parse_router(spec.params.at("router").get<std::string>(), 0);
  router.config.capacity_factor =
      Decimal::parse(spec.params.at("capacity_factor").get<std::string>(), "capacity_factor");
  router.tokens = spec.params.at("tokens");
  router.experts = spec.params.at("experts");
  router.ranks = spec.params.at("gpus");
  router.rank = rank;
  problem.hidden = spec.params.at("hidden");
  problem.ffn = spec.params.at("ffn");
  const auto dispatch = spec.params.at("dispatch").get<std::string>();
  if (dispatch != "index" && dispatch != "einsum") {
    throw UsageError("dispatch: '" + dispatch + "' is neither index nor einsum");
  }
  problem.dispatch = dispatch == "index" ? layer::Dispatch::index : layer::Dispatch::einsum;
  return problem;
}

layer::Pass pass_of(const PointSpec& spec) {
  return spec.params.at("pass") == name_of(layer::Pass::backward) ? layer::Pass::backward
                                                                  : layer::Pass::forward;
}

}  // namespace moesim::kernels::measure
