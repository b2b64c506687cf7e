#pragma once

namespace moesim::profile {

// Core attention with latent keys and values, expanded to all heads as training and prefill have
// it, over what the curve of ordinary attention says of as many FLOPs; backward over 2.5 times the
// forward pass. Forward 0.78 on B200 (SimuMax v1.2, cuDNN), 0.82 on H800 (deepseek-ai/profile-data,
// FlashAttention-3); backward 1.01 and 1.13.
constexpr double latent_share(bool backward) { return backward ? 1.05 : 0.8; }

}  // namespace moesim::profile
