#include "tools/moesim/rows/routing_cells.hpp"

#include <utility>

#include "sim/job/job_options.hpp"

namespace moesim::tool {

std::vector<std::pair<std::string, Cell>> routing_cells(const training::DrawnRouting& drawn,
                                                        const training::RoutingFigures& figures) {
  const routing::RouterConfig& router = drawn.router;
  const auto whole = [](std::int64_t value) { return Cell(value); };
  const auto with_capacity = [&](Cell cell) {
    return router.has_capacity() ? std::move(cell) : Cell();
  };
  const auto text = [](std::string name) { return Cell(std::move(name)); };
  return {
      {"router", router.name()},
      {"top_k", whole(router.top_k)},
      {"capacity_convention", with_capacity(text(routing::name_of(router.capacity_convention)))},
      {"capacity_scope", with_capacity(text(routing::name_of(router.capacity_scope)))},
      {"padding", router.pads_to_busiest() || router.has_capacity()
                      ? text(routing::name_of(router.padding))
                      : Cell()},
      {"priority", with_capacity(text(routing::name_of(router.priority)))},
      {"router_dialect", text(routing::name_of(router.dialect))},
      {"min_capacity", with_capacity(whole(router.min_capacity))},
      {"fill_order", router.fill_in ? text(routing::name_of(router.fill_order)) : Cell()},
      {"ir_duplicates", router.rectification != routing::Rectification::none
                            ? text(routing::name_of(router.ir_duplicates))
                            : Cell()},
      {"expert_placement", drawn.placement_name},
      {"capacity", with_capacity(whole(figures.capacity))},
      {"routing", drawn.scores.name()},
      {"routing_draws", std::string(name_in(training::routing_draws_names, drawn.draws))},
      // As the option takes it: a sample is what auto chose.
      {"fidelity",
       text(routing::name_of(figures.sampled ? routing::Fidelity::automatic : figures.fidelity))},
      {"seed", whole(static_cast<std::int64_t>(drawn.seed))}};
}

std::vector<std::pair<std::string, Cell>> rare_routing_cells(const training::DrawnRouting& drawn) {
  std::vector<std::pair<std::string, Cell>> cells;
  for (const auto& [option, value] : drawn.rare_options) {
    cells.emplace_back(job::job_option_named(option).column(), value);
  }
  return cells;
}

}  // namespace moesim::tool
