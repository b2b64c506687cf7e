#include "sim/routing/rules/moe_phases.hpp"

#include <algorithm>
#include <set>

#include "sim/routing/rules/moe_stages.hpp"
#include "tests/support/catch.hpp"

namespace moesim::routing {
namespace {

using Phases = std::vector<MoePhase>;

Phases without_ir(Phases phases) {
  std::erase(phases, MoePhase::rectify);
  return phases;
}

// Every shape that a layer can have.
std::vector<MoeLayerShape> all_shapes() {
  std::vector<MoeLayerShape> shapes;
  for (const bool exchanges : {false, true}) {
    for (const bool shared : {false, true}) {
      for (const bool shuffles : {false, true}) {
        if (shuffles && !exchanges) continue;
        for (const bool sorts : {false, true}) {
          if (sorts && !exchanges) continue;
          shapes.push_back({exchanges, shuffles, shared, false, IrCompute::separate, sorts});
          for (const IrCompute when :
               {IrCompute::separate, IrCompute::grouped, IrCompute::overlap}) {
            shapes.push_back({exchanges, shuffles, shared, true, when, sorts});
          }
        }
      }
    }
  }
  return shapes;
}

MoePhase before_ir(const Phases& phases) {
  const auto found = std::find(phases.begin(), phases.end(), MoePhase::rectify);
  REQUIRE(found != phases.begin());
  REQUIRE(found != phases.end());
  return *(found - 1);
}

TEST_CASE("the backward pass has the phases of the forward pass in reverse, but those of IR") {
  for (const MoeLayerShape& shape : all_shapes()) {
    Phases forward = without_ir(moe_phases(Pass::forward, shape));
    std::erase(forward, MoePhase::announce);  // what is known by then
    std::reverse(forward.begin(), forward.end());
    CHECK(forward == without_ir(moe_phases(Pass::backward, shape)));
  }
}

TEST_CASE("IR runs while tokens travel, with the experts, or once the rows are home") {
  MoeLayerShape shape;
  shape.rectified = true;
  shape.ir_compute = IrCompute::overlap;
  CHECK(before_ir(moe_phases(Pass::forward, shape)) == MoePhase::dispatch_exchange);
  CHECK(before_ir(moe_phases(Pass::backward, shape)) == MoePhase::combine_exchange);
  shape.ir_compute = IrCompute::grouped;
  CHECK(before_ir(moe_phases(Pass::forward, shape)) == MoePhase::experts);
  CHECK(before_ir(moe_phases(Pass::backward, shape)) == MoePhase::experts);
  shape.ir_compute = IrCompute::separate;
  CHECK(before_ir(moe_phases(Pass::forward, shape)) == MoePhase::combine_exchange);
  CHECK(before_ir(moe_phases(Pass::backward, shape)) == MoePhase::dispatch_exchange);
}

TEST_CASE("rows go to their experts first and home to their tokens second, in both passes") {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    std::vector<bool> there;
    for (const MoePhase phase : moe_phases(pass, {})) {
      if (traits_of(phase).part == LayerPart::exchange) {
        there.push_back(goes_to_experts(phase, pass));
      }
    }
    CHECK(there == std::vector<bool>{true, false});
  }
}

TEST_CASE("every stage of a layer belongs to a phase that it has, in the order of the phases") {
  for (const MoeLayerShape& shape : all_shapes()) {
    for (const RowMoves moves : {RowMoves::index, RowMoves::einsum}) {
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        const Phases phases = moe_phases(pass, shape);
        std::set<MoeStageKind> kinds;
        auto at = phases.begin();
        for (const MoeStage& stage : moe_stages(pass, shape, moves)) {
          at = std::find(at, phases.end(), stage.phase);
          INFO(stage.name);
          REQUIRE(at != phases.end());
          CHECK(kinds.insert(stage.kind).second);
          CHECK((stage.part == LayerPart::exchange) ==
                (traits_of(stage.phase).part == LayerPart::exchange));
          if (!shape.rectified) CHECK(stage.part != LayerPart::rectify);
        }
        const auto stages = moe_stages(pass, shape, moves);
        const auto has_stage = [&](MoePhase phase) {
          return std::any_of(stages.begin(), stages.end(),
                             [&](const MoeStage& stage) { return stage.phase == phase; });
        };
        for (const MoePhase phase :
             {MoePhase::route, MoePhase::dispatch, MoePhase::experts, MoePhase::combine}) {
          CHECK(has_stage(phase));
        }
        CHECK(has_stage(MoePhase::dispatch_exchange) == shape.exchanges);
        CHECK(has_stage(MoePhase::combine_exchange) == shape.exchanges);
        CHECK(has_stage(MoePhase::rectify) == shape.rectified);
      }
    }
  }
}

TEST_CASE("the work of stages, by hand") {
  // S = 64, E = 8, C = 16, h = 32, k' = 2: S h = 2,048, E C = 128, E C h = 4,096, S E C = 8,192.
  const MoeLayerSizes sizes{64, 8, 16, 32, 2, true, true};
  CHECK(work_of(MoeStageKind::permute, sizes).bytes == 2 * 2048 + 2 * 4096);
  CHECK(work_of(MoeStageKind::send, sizes).bytes == 2 * 4096);
  CHECK(work_of(MoeStageKind::combine, sizes).bytes == 2 * 2 * 2048 + 2 * 4096);
  CHECK(work_of(MoeStageKind::dispatch_mask, sizes).bytes == 2 * 8192);
  CHECK(work_of(MoeStageKind::dispatch_product, sizes).flops == 2.0 * 64 * 128 * 32);
  CHECK(work_of(MoeStageKind::gate, sizes).flops == 2.0 * 64 * 8 * 32);
  CHECK(work_of(MoeStageKind::gate, sizes).weight_bytes == 2 * 8 * 32);
  CHECK(work_of(MoeStageKind::weigh, sizes).bytes == 14 * 128 + 16 * 64);
  CHECK(work_of(MoeStageKind::ir_experts, sizes).bytes == 0);
}

}  // namespace
}  // namespace moesim::routing
