#pragma once

#include "sim/base/enum_names.hpp"
#include "sim/scenario/idle_rules.hpp"
#include "sim/scenario/option.hpp"

namespace moesim::scenario {

// eager: a gate in fp32 of many kernels, as DeepSpeed's, and the gated activation as the profile's
// activation curve has it; fused: a gate's product in bf16 on tensor cores and its choices in a few
// kernels (routing/rules/gate_work.hpp), and an activation that streams at the memory bandwidth,
// unless the profile's own is faster (Megatron-Core's, vLLM's, SGLang's).
enum class Fusion { eager, fused };
inline constexpr EnumNames<Fusion, 2> fusion_names{
    {{Fusion::eager, "eager", "a kernel for each operation, the gate in fp32 (DeepSpeed)"},
     {Fusion::fused, "fused",
      "few kernels: a gate's product in bf16 and its choices, one for the activation; held "
      "against kernels on one H200"}}};

// separate: as a loop over the experts of a GPU (DeepSpeed); batched: as grouped products
// (profile/batched_products.hpp); fused: as a serving engine's call for the whole FFN
// (Profile::expert_ffn, KernelPricer::experts_move_rows).
enum class ExpertProducts { separate, batched, fused };
inline constexpr EnumNames<ExpertProducts, 3> expert_products_names{
    {{ExpertProducts::separate, "separate", "in a call each"},
     {ExpertProducts::batched, "batched",
      "in one call, held against cuBLAS's grouped products on one H200"},
     {ExpertProducts::fused, "fused",
      "in vLLM's fused call with its gather, activation and weighted sum, as published; forward "
      "passes alone"}}};

// Into which kernels the software forms the work of a step.
struct Software {
  Fusion fusion = Fusion::eager;
  ExpertProducts expert_products = ExpertProducts::separate;
};

// UsageError where no published kernel is like the step's experts.
void check_expert_products(const Scenario& scenario, Use use);

template <class Table>
void declare_software(Table& table) {
  table.choice("fusion", fusion_names, &Software::fusion)
      .by_default("eager")
      .help("how far the software fuses small kernels:")
      .in_route(false)
      .idle(without_step);
  table.choice("expert-products", expert_products_names, &Software::expert_products)
      .by_default("separate")
      .help("a GPU's experts multiply their rows:")
      .in_route(false)
      .applies(has_experts)
      .idle(without_moe_step)
      .checked(check_expert_products);
}

}  // namespace moesim::scenario
