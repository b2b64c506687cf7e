#pragma once

#include "kernels/base/block.cuh"
#include "kernels/routing/route_mass.cuh"

// From slots to weights and IR rows.
namespace moesim::kernels::routing {

inline constexpr int weigh_threads = 256;
inline constexpr int collect_threads = 1024;

// The local expert that takes a token with too few kept routes; false: none.
MOESIM_DEVICE bool find_ir(const WeighArguments& in, int token, std::uint16_t& expert,
                           float& probability) {
  for (int place = 0; place < in.local_places; ++place) {
    const std::int64_t at = place * in.stride + token;
    expert = in.local_expert[at];
    if (expert == no_expert) return false;
    bool taken = false;
    for (int choice = 0; in.exclude_duplicates && choice < in.choices; ++choice) {
      const std::int64_t route = choice * in.stride + token;
      taken = taken || (in.slot[route] != slot_failed && in.expert[route] == expert);
    }
    if (taken) continue;
    probability = in.local_probability[at];
    return true;
  }
  return false;
}

// One thread per token: reads 8 to 10 bytes per choice, writes 4.
MOESIM_KERNEL(weigh_threads)
weigh_routes(WeighArguments in) {
  namespace math = ::moesim::routing;
  const int token = block_index() * block_threads() + thread_index();
  if (token >= in.tokens) return;
  RouteMass mass;
  int kept = 0;
  for (int choice = 0; choice < in.choices; ++choice) {
    const std::int64_t at = choice * in.stride + token;
    const bool keep = in.slot[at] != slot_failed;
    mass.add(in.probability[at], keep, choice < in.top_k);
    kept += keep ? 1 : 0;
  }
  std::uint16_t ir_expert = no_expert;
  float ir_probability = 0;
  const bool rectified =
      in.local_places > 0 && kept < in.top_k && find_ir(in, token, ir_expert, ir_probability);
  const float ir_mass =
      rectified ? math::multiply(static_cast<float>(in.top_k - kept), ir_probability) : 0.0F;
  const float whole = mass.whole(in.rule, ir_mass);
  for (int choice = 0; choice < in.choices; ++choice) {
    const std::int64_t at = choice * in.stride + token;
    in.weight[at] = route_weight(in.probability[at], in.slot[at] != slot_failed, whole);
  }
  if (in.local_places == 0) return;
  in.ir_expert[token] = rectified ? ir_expert : no_expert;
  in.ir_probability[token] = rectified ? ir_probability : 0.0F;
  const bool alone = rectified && kept == 0 && in.rule == WeightRule::kept;
  in.ir_weight[token] = alone ? 1.0F : whole > 0 ? math::divide(ir_mass, whole) : 0.0F;
}

// The experts of tokens [first, first + 8), no_expert for those that are not there.
struct EightExperts {
  std::uint16_t expert[8];
};

MOESIM_DEVICE EightExperts load_eight(const CollectArguments& in, int first) {
  EightExperts eight;
  Vector16 words{{0xffffffffU, 0xffffffffU, 0xffffffffU, 0xffffffffU}};
  if (first < in.tokens)
    words = load_constant(reinterpret_cast<const Vector16*>(in.ir_expert + first));
  MOESIM_UNROLL_ALL
  for (int at = 0; at < 8; ++at) {
    const std::uint32_t word =
        at % 2 == 0 ? words.word[at / 2] & 0xffffU : words.word[at / 2] >> 16;
    eight.expert[at] = first + at < in.tokens ? static_cast<std::uint16_t>(word) : no_expert;
  }
  return eight;
}

// One block per local expert, collect_threads threads of 8 tokens at a time, scan_words words of
// shared memory; `ir_expert` is aligned to 16 bytes and readable up to a multiple of 8 tokens. Each
// block counts the rows of the experts before its own by itself, so that none waits for another.
MOESIM_KERNEL(collect_threads)
collect_ir_rows(CollectArguments in) {
  auto* scratch = reinterpret_cast<std::uint32_t*>(shared_memory());
  const int local = block_index();
  const int expert = in.local_first + local;
  const int step = block_threads() * 8;
  std::uint32_t before = 0;
  for (int first = thread_index() * 8; first < in.tokens && local > 0; first += step) {
    const EightExperts eight = load_eight(in, first);
    MOESIM_UNROLL_ALL
    for (int at = 0; at < 8; ++at) {
      before += eight.expert[at] >= in.local_first && eight.expert[at] < expert ? 1 : 0;
    }
  }
  std::uint32_t next = block_scan(before, scratch).total;
  if (thread_index() == 0) in.ir_begin[local] = static_cast<std::int32_t>(next);
  for (int begin = 0; begin < in.tokens; begin += step) {
    const int first = begin + thread_index() * 8;
    const EightExperts eight = load_eight(in, first);
    std::uint32_t count = 0;
    MOESIM_UNROLL_ALL
    for (int at = 0; at < 8; ++at) count += eight.expert[at] == expert ? 1 : 0;
    const ScanResult scan = block_scan(count, scratch);
    auto row = static_cast<std::int32_t>(next + scan.before);
    MOESIM_UNROLL_ALL
    for (int at = 0; at < 8; ++at) {
      if (eight.expert[at] == expert) {
        in.ir_row[first + at] = row;
        in.row_token[row++] = first + at;
      } else if (local == 0 && eight.expert[at] == no_expert && first + at < in.tokens) {
        in.ir_row[first + at] = -1;
      }
    }
    next += scan.total;
  }
  if (thread_index() == 0 && local == in.local_last - in.local_first - 1) {
    in.ir_begin[local + 1] = static_cast<std::int32_t>(next);
  }
}

}  // namespace moesim::kernels::routing
