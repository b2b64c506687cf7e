#pragma once

#include <optional>
#include <string>

namespace moesim::study {

// A forward chunk of four MoE layers beside a backward chunk of four, in milliseconds.
struct ProfiledPair {
  double measured_ms = 0;
  double predicted_ms = 0;
  double apart_ms = 0;  // predicted, had the exchange SMs of its own
};

// DeepSeek-V3 as DeepSeek profiled it (deepseek-ai/profile-data): DualPipe on H800, EP 64, TP 1,
// 4096 tokens, balanced routing, without sends between stages; RMSNorm, the up-projections of
// latent attention and SwiGLU are recomputed (arXiv:2412.19437, section 3.2.3). Predicted with the
// curves of H100, whose SMs H800 has. Nothing is fitted to it, but its kernels were looked at
// beside others for the price of latent attention. Nothing where the folder has no
// deepseek_train_kernels.csv (or .gz); throws UsageError or Error naming the file and line.
std::optional<ProfiledPair> deepseek_pair(const std::string& folder);

}  // namespace moesim::study
