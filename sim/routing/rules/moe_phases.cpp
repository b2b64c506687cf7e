#include "sim/routing/rules/moe_phases.hpp"

#include <array>
#include <cstddef>

namespace moesim::routing {
namespace {

// In the order of MoePhase.
constexpr auto all_traits = std::to_array<MoePhaseTraits>({
    {"shuffle", LayerPart::dispatch_combine, PhaseRows::tokens},
    {"router", LayerPart::router, PhaseRows::tokens},
    {"announce", LayerPart::router, PhaseRows::exchanged},
    {"dispatch", LayerPart::dispatch_combine, PhaseRows::sent},
    {"dispatch_exchange", LayerPart::exchange, PhaseRows::exchanged},
    {"rectify", LayerPart::rectify, PhaseRows::rectified},
    {"shared_expert", LayerPart::expert, PhaseRows::tokens},
    {"sort", LayerPart::dispatch_combine, PhaseRows::sorted},
    {"expert_ffn", LayerPart::expert, PhaseRows::received},
    {"unsort", LayerPart::dispatch_combine, PhaseRows::sorted},
    {"combine_exchange", LayerPart::exchange, PhaseRows::exchanged},
    {"combine", LayerPart::dispatch_combine, PhaseRows::sent},
    {"unshuffle", LayerPart::dispatch_combine, PhaseRows::tokens},
});
static_assert(all_traits.size() == static_cast<std::size_t>(MoePhase::unshuffle) + 1);

struct PhaseRule {
  MoePhase phase;
  bool (*applies)(const MoeLayerShape& shape);
};

bool always(const MoeLayerShape& /*shape*/) { return true; }
bool exchanges(const MoeLayerShape& shape) { return shape.exchanges; }
bool sorts(const MoeLayerShape& shape) { return shape.sorts; }
bool shuffles(const MoeLayerShape& shape) { return shape.shuffles; }
bool has_shared_expert(const MoeLayerShape& shape) { return shape.shared_expert; }
template <IrCompute When>
bool rectifies(const MoeLayerShape& shape) {
  return shape.rectified && shape.ir_compute == When;
}

// IR needs only local data: with `overlap` it runs during the exchange of tokens, with `grouped`
// together with the experts, otherwise after the rows have returned.
constexpr PhaseRule forward_rules[] = {
    {MoePhase::shuffle, shuffles},
    {MoePhase::route, always},
    {MoePhase::announce, exchanges},
    {MoePhase::dispatch, always},
    {MoePhase::dispatch_exchange, exchanges},
    {MoePhase::rectify, rectifies<IrCompute::overlap>},
    {MoePhase::shared_expert, has_shared_expert},
    {MoePhase::sort, sorts},
    {MoePhase::experts, always},
    {MoePhase::rectify, rectifies<IrCompute::grouped>},
    {MoePhase::unsort, sorts},
    {MoePhase::combine_exchange, exchanges},
    {MoePhase::rectify, rectifies<IrCompute::separate>},
    {MoePhase::combine, always},
    {MoePhase::unshuffle, shuffles},
};
// The reversed forward pass, except that IR follows the same phase as there: the first exchange,
// the experts, or the second exchange.
constexpr PhaseRule backward_rules[] = {
    {MoePhase::unshuffle, shuffles},
    {MoePhase::combine, always},
    {MoePhase::combine_exchange, exchanges},
    {MoePhase::rectify, rectifies<IrCompute::overlap>},
    {MoePhase::unsort, sorts},
    {MoePhase::experts, always},
    {MoePhase::rectify, rectifies<IrCompute::grouped>},
    {MoePhase::sort, sorts},
    {MoePhase::shared_expert, has_shared_expert},
    {MoePhase::dispatch_exchange, exchanges},
    {MoePhase::rectify, rectifies<IrCompute::separate>},
    {MoePhase::dispatch, always},
    {MoePhase::route, always},
    {MoePhase::shuffle, shuffles},
};

}  // namespace

const char* name_of(Pass pass) { return pass == Pass::forward ? "forward" : "backward"; }

const char* name_of(LayerPart part) {
  constexpr std::array names = {"router", "dispatch_combine", "exchange", "expert", "rectify"};
  return names[static_cast<std::size_t>(part)];
}

MoePhaseTraits traits_of(MoePhase phase) { return all_traits[static_cast<std::size_t>(phase)]; }

std::vector<MoePhase> moe_phases(Pass pass, const MoeLayerShape& shape) {
  const std::span<const PhaseRule> rules = pass == Pass::forward
                                               ? std::span<const PhaseRule>(forward_rules)
                                               : std::span<const PhaseRule>(backward_rules);
  std::vector<MoePhase> phases;
  for (const PhaseRule& rule : rules) {
    if (rule.applies(shape)) phases.push_back(rule.phase);
  }
  return phases;
}

}  // namespace moesim::routing
