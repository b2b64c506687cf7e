#include "sim/study/sweep/column_meanings.hpp"

#include <map>

namespace moesim::study {

std::string meaning_of_column(const std::string& name) {
  static const std::map<std::string, const char*> meanings = {
      {"status", "ok, or refused: then reason says why and figures are blank"},
      {"reason", "why the scenario was refused"},
      {"capacity", "C: rows that an expert takes from one source"},
      {"step_ms", "one step as simulated, of the median replica: for ratios of scenarios"},
      {"step_ms_p05",
       "with step_ms_p95: holds a measured step with 90 % chance, by any software; around "
       "step_ms_p50, not around step_ms"},
      {"step_ms_p95", "see step_ms_p05"},
      {"step_ms_p50",
       "what a measurement is expected to say: for plans; its speed is tokens_per_s_per_gpu x "
       "step_ms / step_ms_p50"},
      {"step_ms_same_p05",
       "with step_ms_same_p95: the 90 % band beside steps of the same software and machine, whose "
       "errors cancel"},
      {"step_ms_same_p95", "see step_ms_same_p05"},
      {"tokens_per_s_per_gpu", "tokens of the step over step_ms and GPUs"},
      {"attention_ms", "on the critical path, as all parts: projections, attention, norms"},
      {"dense_ffn_ms", "FFNs of layers without experts, with norm and residual"},
      {"router_ms", "gate, choice of experts, positions, weights"},
      {"dispatch_combine_ms",
       "moving rows on a GPU into the order of experts and back (permute, unpermute); between GPUs "
       "they move in exposed_exchange_ms"},
      {"expert_ms", "FFNs of experts, shared ones too, and the wait for the busiest GPU"},
      {"rectify_ms", "IR and FR"},
      {"exposed_exchange_ms",
       "all-to-alls of dispatch and combine that nothing hides: of exchange_ms what is on the "
       "critical path"},
      {"gradient_ms", "exchanges of gradients and parameters that nothing hides"},
      {"optimizer_ms", "update of the weights"},
      {"other_ms", "embedding, output head, gradients added up"},
      {"exchange_ms",
       "all-to-alls of dispatch and combine of the GPUs that the critical path is on, hidden ones "
       "too, without waits: no part of step_ms"},
      {"memory_gib", "peak of the fullest GPU"},
      {"fits_memory", "whether memory_gib is no more than the GPU has"},
      {"provenance", "what the figures are based on: measured, published, derived, assumed"},
      {"tflops_per_gpu", "FLOPs of the model by Megatron's formula over step_ms and GPUs"},
      {"mfu", "tflops_per_gpu over the GPU's dense peak; dropped routes count as computed"},
      {"mfu_kept",
       "mfu with the FLOPs of kept routes alone, those of failed left out: before rectification"},
      {"counted_loss",
       "residual_loss, of the model's own router without what its groups or bias pass over, of a "
       "sampled second expert without what sampling does: what capacity drops; --max-loss limits "
       "it"},
      {"tokens_per_day", "of all GPUs, by the mean step of the replicas"},
      {"gpu_hours_per_1e12_tokens", "by the mean step of the replicas"},
      {"parameters_gib", "of memory_gib: weights"},
      {"gradients_gib", "of memory_gib: gradients"},
      {"optimizer_gib", "of memory_gib: states of the optimizer"},
      {"activations_gib", "of memory_gib: activations"},
      {"buffers_gib", "of memory_gib: buffers of exchanges and temporary tensors"},
      {"widest_term", "what makes the band of step_ms_p05 and _p95 wide most of all"},
      {"narrower_with", "what would narrow that band most"},
      {"speed_over_baseline", "tokens_per_s_per_gpu over that of the row of --baseline"},
      {"speed_over_baseline_p05", "with speed_over_baseline_p95: its 90 % band"},
      {"speed_over_baseline_p95", "see speed_over_baseline_p05"},
      {"within_noise", "whether that band holds 1"},
  };
  const auto found = meanings.find(name);
  return found == meanings.end() ? "" : found->second;
}

}  // namespace moesim::study
