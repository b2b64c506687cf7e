#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/base/formats/document.hpp"
#include "sim/profile/collective.hpp"
#include "sim/profile/device.hpp"
#include "sim/profile/estimate.hpp"
#include "sim/profile/kernels/attention_shape.hpp"
#include "sim/profile/node_links.hpp"
#include "sim/profile/software_document.hpp"

namespace moesim::profile {

// What a profile could not measure or derive, and what would supply it.
struct Missing {
  std::string suite;
  std::string reason;
  std::string hint;
};

// Families of memory-bound kernels, which reach different shares of the memory bandwidth.
enum class MemoryKernel {
  streaming,      // elementwise over several arrays: add, scale, cast, copy, optimizer updates
  activation,     // gated activation: silu(a) * b
  normalization,  // RMSNorm / LayerNorm over rows
};
inline constexpr EnumNames<MemoryKernel, 3> memory_kernel_names{{
    {MemoryKernel::streaming, "streaming"},
    {MemoryKernel::activation, "activation"},
    {MemoryKernel::normalization, "normalization"},
}};
constexpr const char* name_of(MemoryKernel kernel) { return name_in(memory_kernel_names, kernel); }

// What a question that names no data type is about.
inline constexpr const char* default_data_type = "bf16";

// How many times longer compute takes while an exchange of its GPU runs, and the other way round.
struct OverlapSlowdowns {
  double compute = 1;
  double exchange = 1;
};

// The measured behaviour of one GPU and its node: cost curves read from a profile document. Every
// answer says where it comes from; what the curves cannot answer is an Error with reason and hint,
// never the nearest wrong number. Immutable; copies share the curves; safe to use from threads.
class Profile {
 public:
  // A shipped name ("a100-sxm-80gb") or a file. UsageError for an unknown name (lists the shipped
  // ones), an absent file, a document that breaks the schema, or an unknown version.
  // A document of moesim calibrate stands for the profile of hardware that its rows were predicted
  // by, where `calibrated` says that the caller scales the answers by it; else UsageError.
  enum class Calibrated { refused, taken };
  static Profile load(const std::string& name_or_path, Calibrated calibrated = Calibrated::refused);

  const std::string& name() const;
  // The document of moesim calibrate that was loaded; "": none.
  const std::string& calibration() const;
  const Device& device() const;
  const NodeLinks& links() const;
  const std::vector<Missing>& missing() const;
  // Whose curves price the products of a training step: those of this profile, unless its document
  // names another one.
  const Profile& training_products() const;
  // What compute and exchanges of a GPU lose while both run, if the document has it.
  const std::optional<OverlapSlowdowns>& overlap() const;

  // How much longer a class of kernels ("gemm", "attention", "memory", "gating", "einsum", "mask",
  // "exchange") takes in the software that a "moesim-software" document describes than its curve
  // says; 1 for a profile of hardware alone. The estimates below do not contain it.
  double software_multiplier(const std::string& kernel_class) const;
  // That document; nothing for a profile of hardware alone.
  const std::optional<SoftwareDocument>& software() const;

  // The data types of the curves of an operation ("gemm", "attention", "latent-attention",
  // "expert-ffn", "quantize"), as the document names them ("bf16"); empty: no curve.
  std::vector<std::string> data_types(const std::string& op) const;

  // C[m, n] = A[m, k] B[k, n], C in bf16, A and B in `dtype`; all sizes >= 1. The published calls
  // of other types than bf16 begin with A in bf16: their times hold its quantisation. Those that
  // moesim profile measures do not.
  Estimate gemm(std::int64_t m, std::int64_t n, std::int64_t k,
                const std::string& dtype = default_data_type) const;

  // The microseconds that the cast in gemm() takes, as the curve's fit has them. A step that casts
  // in another kernel, or once for several products, has the product without it.
  double gemm_cast_us(std::int64_t m, std::int64_t k, const std::string& dtype) const;

  // Causal attention, queries in bf16, keys and values cached in `dtype`; heads are a multiple of
  // kv_heads. The backward pass is derived from the forward by FLOPs.
  Estimate attention(const AttentionShape& shape, bool backward,
                     const std::string& dtype = default_data_type) const;

  // Causal attention with latent keys and values (DeepSeek-V2, arXiv:2405.04434: latent 512,
  // head size 128 and 64 rotated), prefill form, `heads` of one rank: the latents of a sequence
  // projected up to keys and values of every head, attention over them, the cache in `dtype`
  // written. Backward as of attention.
  Estimate latent_attention(std::int64_t batch, std::int64_t sequence, std::int64_t heads,
                            bool backward, const std::string& dtype = default_data_type) const;

  // Activations A[m, k] in bf16 cast to `dtype` with a scale per row that the kernel finds, beyond
  // what a cast with a known scale takes (which the measured products contain).
  Estimate quantize(std::int64_t m, std::int64_t k, const std::string& dtype) const;

  // One memory-bound kernel that reads and writes `bytes` > 0 in total.
  Estimate memory(double bytes, MemoryKernel kernel = MemoryKernel::streaming) const;

  // Token rows [tokens, hidden] bf16 gathered into expert order, tokens * k rows out (permute),
  // and back with a weighted sum (combine): 2 tokens h + 2 rows h bytes each.
  Estimate permute(std::int64_t tokens, std::int64_t hidden, std::int64_t k) const;
  Estimate combine(std::int64_t tokens, std::int64_t hidden, std::int64_t k) const;
  // The same with any number of rows (a padded exchange has E * C of them).
  Estimate permute_rows(std::int64_t tokens, std::int64_t rows, std::int64_t hidden) const;
  Estimate combine_rows(std::int64_t tokens, std::int64_t rows, std::int64_t hidden) const;

  // SwiGLU expert FFN forward in the measured fused kernels: `rows` in total, spread evenly over
  // `experts` local experts.
  Estimate expert_ffn(std::int64_t rows, std::int64_t hidden, std::int64_t ffn,
                      std::int64_t experts, const std::string& dtype = default_data_type) const;
  // The same with each local expert's own number of rows (zeros allowed).
  Estimate expert_ffn(std::span<const std::int64_t> rows_per_expert, std::int64_t hidden,
                      std::int64_t ffn, const std::string& dtype = default_data_type) const;

  // One exchange among `gpus` >= 2 of one node; `bytes` = nccl-tests' size column, the whole
  // per-rank buffer (of all-to-all: what a rank sends to all, itself included).
  Estimate collective(Collective kind, int gpus, double bytes) const;
  // The same under another NCCL version of the document, "2.23" say; lists them if it is unknown.
  Estimate collective(Collective kind, int gpus, double bytes, const std::string& nccl) const;

 private:
  struct Content;
  static Profile read_software(const Document& document);
  static Profile read_training_products(const Node& node);
  static Profile read_calibration(const Document& document, const std::string& file,
                                  Calibrated calibrated);
  explicit Profile(std::shared_ptr<const Content> content) : content_(std::move(content)) {}
  std::shared_ptr<const Content> content_;
};

}  // namespace moesim::profile
