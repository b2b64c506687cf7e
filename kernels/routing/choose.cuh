#pragma once

#include "kernels/base/philox.cuh"
#include "kernels/routing/lane_lists.cuh"
#include "kernels/routing/token_logits.cuh"

// Softmax and top-k', one token per 8, 16 or 32 lanes, in registers: reads 4 E bytes a token,
// writes 6 per choice. A choice costs two warp reductions (value, then lowest expert) and a search
// of each lane's values; of many choices among many experts, each lane sorts its values once.
namespace moesim::kernels::routing {

inline constexpr int choose_threads = 256;

template <int values>
MOESIM_HOST_DEVICE constexpr std::size_t choose_shared_bytes() {
  return values == 4 || values == 8 ? choose_threads * values * sizeof(LaneEntry) : 0;
}

// One token from prepared logits; all lanes of the warp take part, `write` is false for those
// without a token. `lists`: shared memory of this lane, null without.
template <int lanes, int values>
MOESIM_DEVICE void choose_token(const ChooseArguments& in, const TokenLogits<lanes, values>& logits,
                                int token, bool write, LaneEntry* lists = nullptr) {
  const int lane = lane_index() % lanes;
  const ChoiceArrays& out = in.out;
  std::uint16_t expert = no_expert;
  float chosen = 0;
  if (!largest_of_lists(logits, lists, in.experts, in.choices, expert, chosen)) {
    logits.largest(0, in.experts, in.choices, expert, chosen);
  }
  if (write && lane < in.choices) {
    const std::int64_t at = lane * out.stride + token;
    out.expert[at] = logits.valid ? expert : no_expert;
    out.probability[at] = logits.valid ? logits.probability(chosen) : 0.0F;
    if (out.slot != nullptr) out.slot[at] = slot_failed;
  }
  if (in.local_places > 0) {
    logits.largest(in.local_first, in.local_last, in.local_places, expert, chosen);
    if (write && lane < in.local_places) {
      const std::int64_t at = lane * out.stride + token;
      out.local_expert[at] = logits.valid ? expert : no_expert;
      out.local_probability[at] = logits.valid ? logits.probability(chosen) : 0.0F;
    }
  }
  if (!write || lane != 0) return;
  if (out.sum_parts != nullptr) {
    out.sum_parts[token] = logits.maximum;
    out.sum_parts[out.stride + token] = logits.sum;
  }
  if (out.key != nullptr) {
    const PhiloxKey stream{{in.random.key[0], in.random.key[1]},
                           {in.random.counter[0], in.random.counter[1]}};
    const PhiloxWords4 block = philox(stream, static_cast<std::uint64_t>(token / 4));
    // Selected, not indexed: an index of run time would put the block in memory.
    const std::uint32_t low = token % 2 == 0 ? block.word[0] : block.word[1];
    const std::uint32_t high = token % 2 == 0 ? block.word[2] : block.word[3];
    out.key[token] = token % 4 < 2 ? low : high;
  }
  if (!logits.valid && out.invalid != nullptr) atomic_add(out.invalid, 1);
}

// Blocks of choose_threads threads, choose_threads / lanes tokens each, choose_shared_bytes.
template <int lanes, int values>
MOESIM_KERNEL(choose_threads)
choose_experts(ChooseArguments in) {
  const int token = (block_index() * block_threads() + thread_index()) / lanes;
  const bool there = token < in.tokens;
  TokenLogits<lanes, values> logits;
  logits.experts = in.experts;
  const float* row = in.logits + static_cast<std::int64_t>(there ? token : 0) * in.experts;
  for (int value = 0; value < values; ++value) {
    const int expert = logits.expert_at(value);
    logits.logit[value] =
        there && expert < in.experts ? load_constant(row + expert) : -__builtin_huge_valf();
  }
  logits.prepare();
  LaneEntry* lists = nullptr;
  if constexpr (choose_shared_bytes<values>() > 0) {
    lists = reinterpret_cast<LaneEntry*>(shared_memory()) + thread_index();
  }
  choose_token(in, logits, token, there, lists);
}

// Calls `with(lanes, values)`, both as compile-time constants, for the layout that holds `experts`.
template <int number>
struct Constant {
  static constexpr int value = number;
};

template <typename Use>
void with_layout(int experts, Use&& use) {
  if (experts <= 8) return use(Constant<8>(), Constant<1>());
  if (experts <= 16) return use(Constant<16>(), Constant<1>());
  if (experts <= 32) return use(Constant<32>(), Constant<1>());
  if (experts <= 64) return use(Constant<32>(), Constant<2>());
  if (experts <= 128) return use(Constant<32>(), Constant<4>());
  if (experts <= 256) return use(Constant<32>(), Constant<8>());
  return use(Constant<32>(), Constant<16>());
}

}  // namespace moesim::kernels::routing
