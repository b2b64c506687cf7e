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

// The exchange of experts, by the kernel or by the collective.
constexpr Rule exchanges[] = {
    {"sendrecv", Place::exposed_exchange},        {"all_to_all", Place::exposed_exchange},
    {"alltoall", Place::exposed_exchange},        {"deep_ep", Place::exposed_exchange},
    {"deepep", Place::exposed_exchange},          {"hybrid_ep", Place::exposed_exchange},
    {"::dispatch", Place::exposed_exchange},      {"::combine", Place::exposed_exchange},
    {"notify_dispatch", Place::exposed_exchange}, {"cached_notify", Place::exposed_exchange},
    {"moea2a", Place::exposed_exchange},          {"nvshmem", Place::exposed_exchange}};

// Collectives of tensor parallelism that are no kernels of NCCL.
constexpr Rule other_exchanges[] = {{"cross_device_reduce", Place::other},
                                    {"allreduce", Place::other},
                                    {"all_reduce", Place::other},
                                    {"userbuffers", Place::other}};

// Groups as Megatron-Core ("EXPERT_MODEL_PARALLEL_GROUP") and PyTorch's device meshes ("mesh_ep")
// describe them; all other groups reduce gradients or gather parameters.
constexpr Rule groups[] = {{"expert_data", Place::gradient},
                           {"mesh_dp", Place::gradient},
                           {"expert", Place::exposed_exchange},
                           {"mesh_ep", Place::exposed_exchange},
                           {"mesh_etp", Place::exposed_exchange},
                           {"tensor", Place::other},
                           {"mesh_tp", Place::other},
                           {"pipeline", Place::pipeline},
                           {"mesh_pp", Place::pipeline},
                           {"context", Place::other},
                           {"mesh_cp", Place::other}};

// In template arguments: grouped products. DeepGEMM's GemmType is 0 for one product, 4 for batches.
constexpr Rule arguments[] = {{"gemmgrouped", Place::expert},
                              {"groupproblemshape", Place::expert},
                              {"gemmtype)1", Place::expert},
                              {"gemmtype)2", Place::expert},
                              {"gemmtype)3", Place::expert}};

constexpr Rule kernels[] = {
    // moesim's own
    {"dense_ffn", Place::dense_ffn},
    {"expert_ffn", Place::expert},
    {"rectify", Place::rectify},
    {"counts_to_host", Place::router},
    {"gradient_accumulation", Place::other},
    {"recompute_w_u", Place::attention},  // of linear attention, see below
    {"recompute", Place::any_product},
    // what torch.compile fused, and its products; flex attention is one of these
    {"flex_attention", Place::attention},
    {"triton_tem", Place::any_product},
    {"triton_mm", Place::any_product},
    {"nll_loss", Place::other},
    {"cross_entropy", Place::other},
    {"triton_poi_", Place::any_memory},
    {"triton_red_", Place::any_memory},
    {"triton_per_", Place::any_memory},
    // DeepSeek's, whose namespace grouped_gemm has single products and helpers too
    {"m_grouped", Place::expert},
    {"grouped_gemm::cuda::utils", Place::any_memory},
    {"grouped_gemm::cuda::fp8_", Place::any_product},
    {"expand_to_fused", Place::dispatch_combine},
    {"reduce_fused", Place::dispatch_combine},
    {"fused_mapping", Place::dispatch_combine},
    {"count_expert", Place::dispatch_combine},
    // experts: grouped products, and what is fused with them
    {"grouped_gemm", Place::expert},
    {"groupedgemm", Place::expert},
    {"group_gemm", Place::expert},
    {"grouped_mm", Place::expert},
    {"fused_moe", Place::expert},
    {"marlin_moe", Place::expert},
    {"moe_gemm", Place::expert},
    {"moe_mx", Place::expert},
    {"sdd_kernel", Place::expert},  // MegaBlocks: block-sparse products
    {"dsd_kernel", Place::expert},
    {"dds_kernel", Place::expert},
    {"matmul_ogs", Place::expert},       // Triton's kernels for gpt-oss
    {"scatter2scatter", Place::expert},  // ScatterMoE
    {"groupxty", Place::expert},
    {"dynbatch", Place::expert},  // TensorRT-LLM: bmm_..._dynBatch
    {"doactivationkernel", Place::expert},
    // rows to and from the experts' order
    {"get_dispatch_layout", Place::dispatch_combine},
    {"permute", Place::dispatch_combine},
    {"row_id_map", Place::dispatch_combine},
    {"sort_chunks", Place::dispatch_combine},
    {"chunk_sort", Place::dispatch_combine},
    {"padded_copy", Place::dispatch_combine},
    {"binned_copy", Place::dispatch_combine},
    {"fill_indices", Place::dispatch_combine},
    {"moe_sum", Place::dispatch_combine},
    {"moe_gather", Place::dispatch_combine},
    {"moe_scatter", Place::dispatch_combine},
    {"sort_expert_tokens", Place::dispatch_combine},
    {"expandinput", Place::dispatch_combine},
    {"finalizemoe", Place::dispatch_combine},
    // attention
    {"flash", Place::attention},
    {"fmha", Place::attention},
    {"sdpa", Place::attention},
    {"attention", Place::attention},
    {"attn", Place::attention},
    {"mla_", Place::attention},
    {"kvcache", Place::attention},
    {"kv_cache", Place::attention},
    {"masked_softmax", Place::attention},
    {"rotary", Place::attention},
    {"rope", Place::attention},
    // linear attention: flash-linear-attention's chunked delta rule, convolution, norms
    {"delta_rule", Place::attention},
    {"chunk_local_cumsum", Place::attention},
    {"scaled_dot_kkt", Place::attention},
    {"16x16_to_64x64_inverse", Place::attention},
    {"16x16_to_32x32_inverse", Place::attention},
    {"solve_tril", Place::attention},
    {"prepare_wy_repr", Place::attention},
    {"chunk_fwd_kernel_o", Place::attention},
    {"chunk_bwd_kernel_d", Place::attention},
    {"causal_conv1d", Place::attention},
    {"l2norm", Place::attention},
    {"norm_gated", Place::attention},
    // router
    {"topk", Place::router},
    {"router", Place::router},
    {"routing", Place::router},
    {"gating", Place::router},
    {"fused_gate", Place::router},
    {"bitmatrix", Place::router},
    {"moe_align", Place::router},
    {"moe_aux_loss", Place::router},
    {"hadamard", Place::any_memory},  // contains "adam"
    // the optimizer
    {"multi_tensor_apply", Place::optimizer},
    {"adam", Place::optimizer},
    {"optimizer", Place::optimizer},
    // the ends of the model
    {"embedding", Place::other},
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
    {"marlin", Place::any_product},
    {"cijk_", Place::any_product},  // Tensile
    {"elementwise", Place::any_memory},
    {"reduce_kernel", Place::any_memory},
    {"norm", Place::any_memory},
    {"gammabeta", Place::any_memory},
    {"softmax", Place::any_memory},
    {"triton_", Place::any_memory},
    {"nvfuser", Place::any_memory},
    {"quant", Place::any_memory},
    {"amax", Place::any_memory},
    {"swizzle", Place::any_memory},
    {"padding", Place::any_memory},
    {"copy", Place::any_memory},
    {"memcpy", Place::any_memory},
    {"memset", Place::any_memory},
    {"chunk_cat", Place::any_memory},
    {"silu", Place::any_memory},
    {"gelu", Place::any_memory},
    {"swiglu", Place::any_memory},
    {"act_and_mul", Place::any_memory},
    {"gated_act", Place::any_memory},
    {"dropout", Place::any_memory},
    {"index", Place::any_memory},
    {"gather", Place::any_memory},
    {"scatter", Place::any_memory},
    {"sort", Place::any_memory},
    {"scan", Place::any_memory},
    {"histogram", Place::any_memory},
    {"cub::", Place::any_memory},
    {"thrust::", Place::any_memory},
    {"triu_tril", Place::any_memory},
    {"cast", Place::any_memory},
    {"transpose", Place::any_memory},
    {"distribution", Place::any_memory}};

// record_function, "nn.Module: TopKRouter_0", "Optimizer.step#AdamW.step". The router of an expert
// layer and shared experts come before the experts.
constexpr Rule ranges[] = {{"optimizer.step", Place::optimizer},
                           {"attention", Place::attention},
                           {"attn", Place::attention},
                           {"deltanet", Place::attention},
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

// "void flashinfer::norm::RMSNormKernel<8u>(float*)": "norm::rmsnormkernel". Template arguments and
// parameters name types of many libraries. CUTLASS's kernels have their name in the arguments.
std::string function_of(const std::string& name) {
  std::string_view rest = name;
  for (const std::string_view start : {"void ", "flashinfer::"}) {
    if (rest.starts_with(start)) rest.remove_prefix(start.size());
  }
  std::string result(rest);
  constexpr std::string_view anonymous = "(anonymous namespace)::";
  for (std::size_t at = result.find(anonymous); at != std::string::npos;
       at = result.find(anonymous)) {
    result.erase(at, anonymous.size());
  }
  std::string function = result.substr(0, result.find_first_of("<("));
  const bool is_wrapper = function.starts_with("cutlass::") || function.empty();
  return is_wrapper ? result : function;
}

Placement place_collective(const KernelName& kernel, const std::string& function) {
  const std::string collective = lower(kernel.collective);
  const Place of_group = first(groups, lower(kernel.group));
  const bool is_library = function.starts_with("nccl") || function.starts_with("rccl");
  if (!is_library && collective.empty()) {
    Place place = first(exchanges, function);
    if (place == Place::unknown) place = first(other_exchanges, function);
    return {place, place != Place::unknown};
  }
  const Place of_kernel = first(exchanges, function + " " + collective);
  const bool is_all_to_all = collective.starts_with("all_to_all");  // reduces no gradients
  if (of_group == Place::gradient && is_all_to_all) return {of_kernel, true};
  if (of_group != Place::unknown) return {of_group, true};
  const bool is_between_two = collective == "send" || collective == "recv";  // of a pipeline
  if (is_between_two) return {Place::pipeline, true};
  return {of_kernel == Place::unknown ? Place::gradient : of_kernel, true};
}

}  // namespace

Placement place_kernel(const KernelName& kernel) {
  const std::string name = lower(kernel.name);
  const std::string function = function_of(name);
  // Whole words: moesim's rows into the order of experts, and the head.
  for (const Rule& rule :
       {Rule{"dispatch", Place::dispatch_combine}, Rule{"combine", Place::dispatch_combine},
        Rule{"shuffle", Place::dispatch_combine}, Rule{"unshuffle", Place::dispatch_combine},
        Rule{"sort", Place::dispatch_combine}, Rule{"unsort", Place::dispatch_combine},
        Rule{"head", Place::other}}) {
    if (name == rule.part_of_name || name == std::string(rule.part_of_name) + "_backward") {
      return {rule.place, false};
    }
  }
  if (function.find("get_dispatch_layout") == std::string::npos) {
    const Placement collective = place_collective(kernel, function);
    if (collective.is_exchange) return collective;
  }
  Place place = first(arguments, name);
  if (place == Place::unknown) place = first(kernels, function);
  if (place == Place::unknown) place = first(kernels, name);
  return {place, false};
}

Place place_range(std::string_view name) { return first(ranges, lower(name)); }

}  // namespace moesim::study
