// Names of kernels and ranges as traces of PyTorch, Megatron-Core, DeepEP, CUTLASS, cuBLAS, Triton,
// FlashAttention, Transformer Engine and NCCL have them, and those of moesim's own timelines.
#include "sim/study/explain/kernel_rules.hpp"

#include <algorithm>
#include <cctype>

namespace moesim::study {
namespace {

struct Rule {
  std::string_view part_of_name;  // lower case
  Place place;
};

// All-to-alls are the exchange of experts in any group. Other collectives count by their group.
constexpr Rule exchanges[] = {
    {"sendrecv", Place::exposed_exchange},       {"all_to_all", Place::exposed_exchange},
    {"alltoall", Place::exposed_exchange},       {"deep_ep", Place::exposed_exchange},
    {"deepep", Place::exposed_exchange},         {"hybrid_ep", Place::exposed_exchange},
    {":dispatch", Place::exposed_exchange},      {":combine", Place::exposed_exchange},
    {"notify_dispatch", Place::exposed_exchange}};

// Groups of the other collectives; all other groups reduce gradients or gather parameters.
constexpr Rule groups[] = {{"expert_data", Place::gradient},
                           {"expert_parallel", Place::exposed_exchange},
                           {"expert_model_parallel", Place::exposed_exchange},
                           {"tensor", Place::other},
                           {"pipeline", Place::other},
                           {"context", Place::other}};

constexpr Rule kernels[] = {
    // moesim's own
    {"dense_ffn", Place::dense_ffn},
    {"expert_ffn", Place::expert},
    {"rectify", Place::rectify},
    {"counts_to_host", Place::router},
    {"gradient_accumulation", Place::other},
    // experts: grouped products
    {"grouped_gemm", Place::expert},
    {"groupedgemm", Place::expert},
    {"gemmgrouped", Place::expert},
    {"groupproblemshape", Place::expert},
    {"m_grouped", Place::expert},
    {"fused_moe", Place::expert},
    {"moe_gemm", Place::expert},
    // attention
    {"flash", Place::attention},
    {"fmha", Place::attention},
    {"attention", Place::attention},
    {"attn", Place::attention},
    {"rotary", Place::attention},
    {"rope", Place::attention},
    // router
    {"topk", Place::router},
    {"router", Place::router},
    {"gating", Place::router},
    {"moe_align", Place::router},
    // rows to and from the experts' order
    {"permute", Place::dispatch_combine},
    {"moe_sum", Place::dispatch_combine},
    // the optimizer
    {"multi_tensor_apply", Place::optimizer},
    {"adam", Place::optimizer},
    {"optimizer", Place::optimizer},
    // the ends of the model
    {"embedding", Place::other},
    {"nll_loss", Place::other},
    {"cross_entropy", Place::other},
    {"memcpy htod", Place::other},
    {"memcpy dtoh", Place::other},
    // products and kernels limited by memory, of which part the name does not say
    {"gemm", Place::any_product},
    {"gemv", Place::any_product},
    {"cutlass", Place::any_product},
    {"cublas", Place::any_product},
    {"xmma", Place::any_product},
    {"nvjet", Place::any_product},
    {"splitk", Place::any_product},
    {"matmul", Place::any_product},
    {"triton_tem", Place::any_product},
    {"triton_mm", Place::any_product},
    {"elementwise", Place::any_memory},
    {"reduce_kernel", Place::any_memory},
    {"norm", Place::any_memory},
    {"softmax", Place::any_memory},
    {"triton_", Place::any_memory},
    {"copy", Place::any_memory},
    {"memcpy", Place::any_memory},
    {"memset", Place::any_memory},
    {"silu", Place::any_memory},
    {"gelu", Place::any_memory},
    {"swiglu", Place::any_memory},
    {"act_and_mul", Place::any_memory},
    {"dropout", Place::any_memory},
    {"index", Place::any_memory},
    {"gather", Place::any_memory},
    {"scatter", Place::any_memory},
    {"sort", Place::any_memory},
    {"scan", Place::any_memory},
    {"cast", Place::any_memory},
    {"transpose", Place::any_memory},
    {"distribution", Place::any_memory}};

// record_function, "nn.Module: TopKRouter_0", "Optimizer.step#AdamW.step". The router of an expert
// layer and shared experts come before the experts.
constexpr Rule ranges[] = {{"optimizer.step", Place::optimizer},
                           {"attention", Place::attention},
                           {"attn", Place::attention},
                           {"router", Place::router},
                           {"gating", Place::router},
                           {"rectif", Place::rectify},
                           {"shared_expert", Place::dense_ffn},
                           {"sharedexpert", Place::dense_ffn},
                           {"permut", Place::dispatch_combine},
                           {"dispatch", Place::dispatch_combine},
                           {"combine", Place::dispatch_combine},
                           {"groupedmlp", Place::expert},
                           {"sequentialmlp", Place::expert},
                           {"expert", Place::expert},
                           {"mlp", Place::dense_ffn},
                           {"feedforward", Place::dense_ffn},
                           {"feed_forward", Place::dense_ffn},
                           {"ffn", Place::dense_ffn},
                           {"embedding", Place::other},
                           {"lm_head", Place::other},
                           {"loss", Place::other}};

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return result;
}

template <std::size_t count>
Place first(const Rule (&rules)[count], std::string_view name) {
  for (const Rule& rule : rules) {
    if (name.find(rule.part_of_name) != std::string_view::npos) return rule.place;
  }
  return Place::unknown;
}

}  // namespace

Placement place_kernel(const KernelName& kernel) {
  const std::string name = lower(kernel.name);
  const bool is_nccl = name.starts_with("nccl");
  const Place exchange = first(exchanges, name + " " + lower(kernel.collective));
  if (exchange != Place::unknown) return {exchange, true};
  if (is_nccl || !kernel.collective.empty()) {
    const Place of_group = first(groups, lower(kernel.group));
    return {of_group == Place::unknown ? Place::gradient : of_group, true};
  }
  // Whole words: moesim's rows into the order of experts, and the head.
  for (const Rule& rule :
       {Rule{"dispatch", Place::dispatch_combine}, Rule{"combine", Place::dispatch_combine},
        Rule{"shuffle", Place::dispatch_combine}, Rule{"unshuffle", Place::dispatch_combine},
        Rule{"head", Place::other}}) {
    if (name == rule.part_of_name || name == std::string(rule.part_of_name) + "_backward") {
      return {rule.place, false};
    }
  }
  return {first(kernels, name), false};
}

Place place_range(std::string_view name) { return first(ranges, lower(name)); }

}  // namespace moesim::study
