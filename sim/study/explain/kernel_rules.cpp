// Names of kernels and ranges as traces of PyTorch, Megatron-Core, DeepEP, CUTLASS, cuBLAS, Triton,
// FlashAttention, Transformer Engine and NCCL have them, and those of moesim's own timelines.
#include "sim/study/explain/kernel_rules.hpp"

#include <algorithm>
#include <cctype>

namespace moesim::study {
namespace {

struct Rule {
  std::string_view part_of_name;  // lower case
  KernelKind kind;
};

// The exchange of experts, by the kernel or by the collective.
constexpr Rule exchanges[] = {{"sendrecv", KernelKind::exposed_exchange},
                              {"all_to_all", KernelKind::exposed_exchange},
                              {"alltoall", KernelKind::exposed_exchange},
                              {"deep_ep", KernelKind::exposed_exchange},
                              {"deepep", KernelKind::exposed_exchange},
                              {"hybrid_ep", KernelKind::exposed_exchange},
                              {"::dispatch", KernelKind::exposed_exchange},
                              {"::combine", KernelKind::exposed_exchange},
                              {"notify_dispatch", KernelKind::exposed_exchange},
                              {"cached_notify", KernelKind::exposed_exchange},
                              {"moea2a", KernelKind::exposed_exchange},
                              {"nvshmem", KernelKind::exposed_exchange}};

// Collectives of tensor parallelism that are no kernels of NCCL.
constexpr Rule other_exchanges[] = {{"cross_device_reduce", KernelKind::other},
                                    {"allreduce", KernelKind::other},
                                    {"all_reduce", KernelKind::other},
                                    {"userbuffers", KernelKind::other}};

// Groups as Megatron-Core ("EXPERT_MODEL_PARALLEL_GROUP") and PyTorch's device meshes ("mesh_ep")
// describe them; all other groups reduce gradients or gather parameters.
constexpr Rule groups[] = {{"expert_data", KernelKind::gradient},
                           {"mesh_dp", KernelKind::gradient},
                           {"expert", KernelKind::exposed_exchange},
                           {"mesh_ep", KernelKind::exposed_exchange},
                           {"mesh_etp", KernelKind::exposed_exchange},
                           {"tensor", KernelKind::other},
                           {"mesh_tp", KernelKind::other},
                           {"pipeline", KernelKind::pipeline},
                           {"mesh_pp", KernelKind::pipeline},
                           {"context", KernelKind::other},
                           {"mesh_cp", KernelKind::other}};

// In template arguments: grouped products. DeepGEMM's GemmType is 0 for one product, 4 for batches.
constexpr Rule arguments[] = {{"gemmgrouped", KernelKind::expert},
                              {"groupproblemshape", KernelKind::expert},
                              {"gemmtype)1", KernelKind::expert},
                              {"gemmtype)2", KernelKind::expert},
                              {"gemmtype)3", KernelKind::expert}};

constexpr Rule kernels[] = {
    // moesim's own
    {"dense_ffn", KernelKind::dense_ffn},
    {"expert_ffn", KernelKind::expert},
    {"rectify", KernelKind::rectify},
    {"counts_to_host", KernelKind::router},
    {"gradient_accumulation", KernelKind::other},
    {"recompute_w_u", KernelKind::attention},  // of linear attention, see below
    {"recompute", KernelKind::any_product},
    // what torch.compile fused, and its products; flex attention is one of these
    {"flex_attention", KernelKind::attention},
    {"triton_tem", KernelKind::any_product},
    {"triton_mm", KernelKind::any_product},
    {"nll_loss", KernelKind::other},
    {"cross_entropy", KernelKind::other},
    {"triton_poi_", KernelKind::any_memory},
    {"triton_red_", KernelKind::any_memory},
    {"triton_per_", KernelKind::any_memory},
    // DeepSeek's, whose namespace grouped_gemm has single products and helpers too
    {"m_grouped", KernelKind::expert},
    {"grouped_gemm::cuda::utils", KernelKind::any_memory},
    {"grouped_gemm::cuda::fp8_", KernelKind::any_product},
    {"expand_to_fused", KernelKind::dispatch_combine},
    {"reduce_fused", KernelKind::dispatch_combine},
    {"fused_mapping", KernelKind::dispatch_combine},
    {"count_expert", KernelKind::dispatch_combine},
    // experts: grouped products, and what is fused with them
    {"grouped_gemm", KernelKind::expert},
    {"groupedgemm", KernelKind::expert},
    {"group_gemm", KernelKind::expert},
    {"grouped_mm", KernelKind::expert},
    {"fused_moe", KernelKind::expert},
    {"marlin_moe", KernelKind::expert},
    {"moe_gemm", KernelKind::expert},
    {"moe_mx", KernelKind::expert},
    {"sdd_kernel", KernelKind::expert},  // MegaBlocks: block-sparse products
    {"dsd_kernel", KernelKind::expert},
    {"dds_kernel", KernelKind::expert},
    {"matmul_ogs", KernelKind::expert},       // Triton's kernels for gpt-oss
    {"scatter2scatter", KernelKind::expert},  // ScatterMoE
    {"groupxty", KernelKind::expert},
    {"dynbatch", KernelKind::expert},  // TensorRT-LLM: bmm_..._dynBatch
    {"doactivationkernel", KernelKind::expert},
    // rows to and from the experts' order
    {"get_dispatch_layout", KernelKind::dispatch_combine},
    {"permute", KernelKind::dispatch_combine},
    {"row_id_map", KernelKind::dispatch_combine},
    {"sort_chunks", KernelKind::dispatch_combine},
    {"chunk_sort", KernelKind::dispatch_combine},
    {"padded_copy", KernelKind::dispatch_combine},
    {"binned_copy", KernelKind::dispatch_combine},
    {"fill_indices", KernelKind::dispatch_combine},
    {"moe_sum", KernelKind::dispatch_combine},
    {"moe_gather", KernelKind::dispatch_combine},
    {"moe_scatter", KernelKind::dispatch_combine},
    {"sort_expert_tokens", KernelKind::dispatch_combine},
    {"expandinput", KernelKind::dispatch_combine},
    {"finalizemoe", KernelKind::dispatch_combine},
    // attention
    {"flash", KernelKind::attention},
    {"fmha", KernelKind::attention},
    {"sdpa", KernelKind::attention},
    {"attention", KernelKind::attention},
    {"attn", KernelKind::attention},
    {"mla_", KernelKind::attention},
    {"kvcache", KernelKind::attention},
    {"kv_cache", KernelKind::attention},
    {"masked_softmax", KernelKind::attention},
    {"rotary", KernelKind::attention},
    {"rope", KernelKind::attention},
    // linear attention: flash-linear-attention's chunked delta rule, convolution, norms
    {"delta_rule", KernelKind::attention},
    {"chunk_local_cumsum", KernelKind::attention},
    {"scaled_dot_kkt", KernelKind::attention},
    {"16x16_to_64x64_inverse", KernelKind::attention},
    {"16x16_to_32x32_inverse", KernelKind::attention},
    {"solve_tril", KernelKind::attention},
    {"prepare_wy_repr", KernelKind::attention},
    {"chunk_fwd_kernel_o", KernelKind::attention},
    {"chunk_bwd_kernel_d", KernelKind::attention},
    {"causal_conv1d", KernelKind::attention},
    {"l2norm", KernelKind::attention},
    {"norm_gated", KernelKind::attention},
    // router
    {"topk", KernelKind::router},
    {"router", KernelKind::router},
    {"routing", KernelKind::router},
    {"gating", KernelKind::router},
    {"fused_gate", KernelKind::router},
    {"bitmatrix", KernelKind::router},
    {"moe_align", KernelKind::router},
    {"moe_aux_loss", KernelKind::router},
    {"hadamard", KernelKind::any_memory},  // contains "adam"
    // the optimizer
    {"multi_tensor_apply", KernelKind::optimizer},
    {"adam", KernelKind::optimizer},
    {"optimizer", KernelKind::optimizer},
    // the ends of the model
    {"embedding", KernelKind::other},
    {"memcpy htod", KernelKind::other},
    {"memcpy dtoh", KernelKind::other},
    // products and kernels limited by memory, of which part the name does not say
    {"gemm", KernelKind::any_product},
    {"gemv", KernelKind::any_product},
    {"cutlass", KernelKind::any_product},
    {"cublas", KernelKind::any_product},
    {"xmma", KernelKind::any_product},
    {"nvjet", KernelKind::any_product},
    {"splitk", KernelKind::any_product},
    {"matmul", KernelKind::any_product},
    {"marlin", KernelKind::any_product},
    {"cijk_", KernelKind::any_product},  // Tensile
    {"elementwise", KernelKind::any_memory},
    {"reduce_kernel", KernelKind::any_memory},
    {"norm", KernelKind::any_memory},
    {"gammabeta", KernelKind::any_memory},
    {"softmax", KernelKind::any_memory},
    {"triton_", KernelKind::any_memory},
    {"nvfuser", KernelKind::any_memory},
    {"quant", KernelKind::any_memory},
    {"amax", KernelKind::any_memory},
    {"swizzle", KernelKind::any_memory},
    {"padding", KernelKind::any_memory},
    {"copy", KernelKind::any_memory},
    {"memcpy", KernelKind::any_memory},
    {"memset", KernelKind::any_memory},
    {"chunk_cat", KernelKind::any_memory},
    {"silu", KernelKind::any_memory},
    {"gelu", KernelKind::any_memory},
    {"swiglu", KernelKind::any_memory},
    {"act_and_mul", KernelKind::any_memory},
    {"gated_act", KernelKind::any_memory},
    {"dropout", KernelKind::any_memory},
    {"index", KernelKind::any_memory},
    {"gather", KernelKind::any_memory},
    {"scatter", KernelKind::any_memory},
    {"sort", KernelKind::any_memory},
    {"scan", KernelKind::any_memory},
    {"histogram", KernelKind::any_memory},
    {"cub::", KernelKind::any_memory},
    {"thrust::", KernelKind::any_memory},
    {"triu_tril", KernelKind::any_memory},
    {"cast", KernelKind::any_memory},
    {"transpose", KernelKind::any_memory},
    {"distribution", KernelKind::any_memory}};

// record_function, "nn.Module: TopKRouter_0", "Optimizer.step#AdamW.step". The router of an expert
// layer and shared experts come before the experts.
constexpr Rule ranges[] = {{"optimizer.step", KernelKind::optimizer},
                           {"attention", KernelKind::attention},
                           {"attn", KernelKind::attention},
                           {"deltanet", KernelKind::attention},
                           {"router", KernelKind::router},
                           {"gating", KernelKind::router},
                           {"rectif", KernelKind::rectify},
                           {"shared_expert", KernelKind::dense_ffn},
                           {"sharedexpert", KernelKind::dense_ffn},
                           {"permut", KernelKind::dispatch_combine},
                           {"dispatch", KernelKind::dispatch_combine},
                           {"combine", KernelKind::dispatch_combine},
                           {"groupedmlp", KernelKind::expert},
                           {"sequentialmlp", KernelKind::expert},
                           {"expert", KernelKind::expert},
                           {"mlp", KernelKind::dense_ffn},
                           {"feedforward", KernelKind::dense_ffn},
                           {"feed_forward", KernelKind::dense_ffn},
                           {"ffn", KernelKind::dense_ffn},
                           {"embedding", KernelKind::other},
                           {"lm_head", KernelKind::other},
                           {"loss", KernelKind::other}};

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return result;
}

template <std::size_t count>
KernelKind first(const Rule (&rules)[count], std::string_view name) {
  for (const Rule& rule : rules) {
    if (name.find(rule.part_of_name) != std::string_view::npos) return rule.kind;
  }
  return KernelKind::unknown;
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

KernelClass classify_collective(const KernelName& kernel, const std::string& function) {
  const std::string collective = lower(kernel.collective);
  const KernelKind of_group = first(groups, lower(kernel.group));
  const bool is_library = function.starts_with("nccl") || function.starts_with("rccl");
  if (!is_library && collective.empty()) {
    KernelKind kind = first(exchanges, function);
    if (kind == KernelKind::unknown) kind = first(other_exchanges, function);
    return {kind, kind != KernelKind::unknown};
  }
  const KernelKind of_kernel = first(exchanges, function + " " + collective);
  const bool is_all_to_all = collective.starts_with("all_to_all");  // reduces no gradients
  if (of_group == KernelKind::gradient && is_all_to_all) return {of_kernel, true};
  if (of_group != KernelKind::unknown) return {of_group, true};
  const bool is_between_two = collective == "send" || collective == "recv";  // of a pipeline
  if (is_between_two) return {KernelKind::pipeline, true};
  return {of_kernel == KernelKind::unknown ? KernelKind::gradient : of_kernel, true};
}

}  // namespace

KernelClass classify_kernel(const KernelName& kernel) {
  const std::string name = lower(kernel.name);
  const std::string function = function_of(name);
  // Whole words: moesim's rows into the order of experts, and the head.
  for (const Rule& rule :
       {Rule{"dispatch", KernelKind::dispatch_combine},
        Rule{"combine", KernelKind::dispatch_combine},
        Rule{"shuffle", KernelKind::dispatch_combine},
        Rule{"unshuffle", KernelKind::dispatch_combine}, Rule{"sort", KernelKind::dispatch_combine},
        Rule{"unsort", KernelKind::dispatch_combine}, Rule{"head", KernelKind::other}}) {
    if (name == rule.part_of_name || name == std::string(rule.part_of_name) + "_backward") {
      return {rule.kind, false};
    }
  }
  if (function.find("get_dispatch_layout") == std::string::npos) {
    const KernelClass collective = classify_collective(kernel, function);
    if (collective.is_exchange) return collective;
  }
  KernelKind kind = first(arguments, name);
  if (kind == KernelKind::unknown) kind = first(kernels, function);
  if (kind == KernelKind::unknown) kind = first(kernels, name);
  return {kind, false};
}

KernelKind classify_range(std::string_view name) { return first(ranges, lower(name)); }

}  // namespace moesim::study
