#include "sim/routing/groups/drawn_chooser.hpp"

#include <algorithm>

namespace moesim::routing {

KeepingRules DrawnChooser::rules(const RouterContext& /*context*/) const {
  return {shape_.config, shape_.experts};
}

void DrawnChooser::choose(const GroupLogits& logits, const RouterContext& context, Choices& out) {
  for (int rank = 0; rank < logits.ranks(); ++rank) {
    const auto gpu = static_cast<std::uint32_t>(context.place.first_gpu + rank);
    experts_.assign(static_cast<std::size_t>(logits.tokens(rank) + tile_tokens), 0);
    draw(logits.tokens(rank), gpu, context);
    out.table.append_chosen(logits.tokens(rank), [&](std::int64_t token, const ChoiceOutput& to) {
      std::copy_n(experts_.begin() + token, tile_tokens, to.expert);
      std::fill_n(to.probability, tile_tokens, 1.0F);
    });
  }
}

}  // namespace moesim::routing
