#include "sim/routing/counts/sample_losses.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "sim/routing/tokens/choice_table.hpp"
#include "sim/routing/tokens/decision.hpp"
#include "sim/routing/tokens/route_orders.hpp"

namespace moesim::routing {

TokenLoss losses_of_sample(const SampledTokens& of, StreamKey random, const TileKernels& kernels) {
  const LayerSample& sample = of.sample;
  const auto sampled = static_cast<std::int64_t>(sample.tokens);
  const std::int64_t gpus = std::max<std::int64_t>(1, sampled / of.tokens_per_gpu);
  const std::int64_t tokens = gpus * of.tokens_per_gpu;
  const auto choices = static_cast<std::size_t>(of.router.top_k);
  ChoiceTable table;
  table.reset(of.experts, of.router.top_k, 1, 0, tokens);
  std::vector<float> reference_mass(static_cast<std::size_t>(tokens) + tile_tokens);
  std::vector<StreamKey> keys;
  std::vector<std::int64_t> capacity;
  for (std::int64_t gpu = 0; gpu < gpus; ++gpu) {
    const std::int64_t first = gpu * of.tokens_per_gpu;
    table.append_chosen(of.tokens_per_gpu, [&](std::int64_t token, const ChoiceOutput& to) {
      float* const best = table.best_output(token);
      for (std::size_t place = 0; place < tile_tokens; ++place) {
        const auto at = static_cast<std::size_t>(first + token) + place;
        const std::size_t from = at % sample.tokens;
        for (std::size_t choice = 0; choice < choices; ++choice) {
          to.expert[choice * to.stride + place] = sample.expert[choice * sample.tokens + from];
          to.probability[choice * to.stride + place] =
              sample.probability[choice * sample.tokens + from];
        }
        best[place] = sample.best[from];
        reference_mass[at] = sample.reference_mass[from];
      }
    });
    random.rank += 1;
    keys.push_back(random);
    capacity.push_back(of.router.capacity(of.tokens_per_gpu, of.experts));
  }
  RouteOrders orders;
  orders.reset(table, std::move(keys));
  Decision decision;
  decision.decide({of.router, table, orders, kernels, 0, capacity, reference_mass.data()});
  return decision.sums().loss(of.router);
}

}  // namespace moesim::routing
