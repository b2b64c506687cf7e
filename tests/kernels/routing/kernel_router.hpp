#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/routing/assign.cuh"
#include "kernels/routing/choose.cuh"
#include "kernels/routing/plan.hpp"
#include "kernels/routing/weigh.cuh"
#include "tests/support/simt/executor.hpp"

// The router of one expert-parallel group by the kernels, run on the host.
namespace moesim::kernels::routing {

inline int blocks_for(std::int64_t threads, int per_block) {
  return static_cast<int>((threads + per_block - 1) / per_block);
}

struct KernelRank {
  RouterProblem problem;
  std::vector<float> logits;
  std::unique_ptr<Vector16[]> memory;
  RouterBuffers buffers;

  KernelRank(RouterProblem given, std::vector<float> rows)
      : problem(std::move(given)), logits(std::move(rows)) {
    problem.check();
    const std::size_t bytes = buffer_bytes(problem) + 256;
    memory.reset(new Vector16[bytes / sizeof(Vector16)]);
    std::fill_n(reinterpret_cast<unsigned char*>(memory.get()), bytes, 0x5A);  // garbage
    const auto address = reinterpret_cast<std::uintptr_t>(memory.get());
    buffers = carve(reinterpret_cast<unsigned char*>(memory.get()) + (256 - address % 256) % 256,
                    problem);
    *buffers.invalid = 0;
  }
};

inline void run_choose(const ChooseArguments& in, simt::Turns turns) {
  if (in.tokens == 0) return;
  with_layout(in.experts, [&](auto lanes, auto values) {
    constexpr int width = decltype(lanes)::value;
    const int blocks = blocks_for(std::int64_t{in.tokens} * width, choose_threads);
    simt::launch(
        {blocks, choose_threads, choose_shared_bytes<decltype(values)::value>()},
        [&] { choose_experts<width, decltype(values)::value>(in); }, turns);
  });
}

// Kernels whose blocks may have any number of warps get few of them, which is faster here; every
// 16th launch has the number that a GPU gets.
inline int some_threads(int most) {
  static int launches = 0;
  constexpr int counts[] = {128, 64, 256, 96};
  return launches++ % 16 == 0 ? most : counts[launches % 4];
}

inline void run_assign(const AssignArguments& in, simt::Turns turns) {
  if (in.tile_begin != nullptr) {
    simt::launch(
        {tiles_of_choice(in.tokens) * in.choices, tile_tokens, sort_shared_bytes(in.experts)},
        [&] { sort_tile(in); }, turns);
  }
  simt::launch(
      {in.experts, some_threads(assign_threads),
       assign_shared_bytes(in.tokens, in.choices, in.buffered_keys)},
      [&] { assign_capacity(in); }, turns);
}

inline void run_weigh(const WeighArguments& in, simt::Turns turns) {
  if (in.tokens == 0) return;
  simt::launch(
      {blocks_for(in.tokens, weigh_threads), weigh_threads, 0}, [&] { weigh_routes(in); }, turns);
}

inline void run_collect(const CollectArguments& in, simt::Turns turns) {
  simt::launch(
      {in.local_last - in.local_first, some_threads(collect_threads), scan_words * 4},
      [&] { collect_ir_rows(in); }, turns);
}

// Assignment over the whole group: the ranks' arrays behind each other, as an all-gather leaves
// them, and the slots back to their ranks.
inline void assign_group(std::vector<std::unique_ptr<KernelRank>>& ranks, simt::Turns turns) {
  AssignArguments in = assign_arguments(ranks[0]->problem, ranks[0]->buffers);
  std::int64_t capacity = 0;
  in.tokens = 0;
  for (const auto& rank : ranks) {
    in.tokens += rank->problem.tokens;
    capacity += rank->problem.capacity();
  }
  in.capacity = static_cast<std::int32_t>(capacity);
  in.stride = (in.tokens + 31) / 32 * 32 + 32;  // more than needed; expert 0 in the padding
  const auto size = static_cast<std::size_t>(in.stride * in.choices);
  std::vector<Vector16> aligned(size / 8);
  auto* expert = reinterpret_cast<std::uint16_t*>(aligned.data());
  std::vector<float> probability(size);
  std::vector<std::int32_t> slot(size, slot_failed), kept(static_cast<std::size_t>(in.experts));
  std::vector<std::uint32_t> key(static_cast<std::size_t>(in.stride));
  const auto each = [&](auto&& use) {
    std::int64_t begin = 0;
    for (const auto& rank : ranks) {
      for (int choice = 0; choice < in.choices; ++choice) {
        use(*rank, choice * in.stride + begin, choice * rank->problem.stride());
      }
      begin += rank->problem.tokens;
    }
  };
  each([&](KernelRank& rank, std::int64_t to, std::int64_t from) {
    std::copy_n(rank.buffers.expert + from, rank.problem.tokens, expert + to);
    std::copy_n(rank.buffers.probability + from, rank.problem.tokens, probability.data() + to);
    if (rank.buffers.key != nullptr && to < in.stride) {
      std::copy_n(rank.buffers.key, rank.problem.tokens, key.data() + to);
    }
  });
  in.expert = expert;
  in.probability = probability.data();
  in.key = key.data();
  in.slot = slot.data();
  in.row_route = nullptr;
  in.tile_begin = nullptr;
  in.tile_token = nullptr;
  in.kept_rows = kept.data();
  in.kept_primary = nullptr;
  in.buffered_keys = assign_shape(in.tokens, in.choices).buffered_keys;
  run_assign(in, turns);
  each([&](KernelRank& rank, std::int64_t from, std::int64_t to) {
    std::copy_n(slot.data() + from, rank.problem.tokens, rank.buffers.slot + to);
  });
}

// Routes every rank; `logits` is [rank][token, expert].
inline std::vector<std::unique_ptr<KernelRank>> route_by_kernels(
    const ::moesim::routing::RouterConfig& config, int experts,
    const std::vector<std::vector<float>>& logits,
    const ::moesim::routing::RouterContext& context = {}, simt::Turns turns = simt::Turns::forward,
    int buffered_keys = -1, std::int64_t most_looks = RouterProblem().most_looks) {
  std::vector<std::unique_ptr<KernelRank>> ranks;
  for (std::size_t rank = 0; rank < logits.size(); ++rank) {
    RouterProblem problem;
    problem.config = config;
    problem.tokens = static_cast<int>(logits[rank].size()) / experts;
    problem.experts = experts;
    problem.ranks = static_cast<int>(logits.size());
    problem.rank = static_cast<int>(rank);
    problem.context = context;
    problem.list_rows = true;
    problem.most_looks = most_looks;
    ranks.push_back(std::make_unique<KernelRank>(problem, logits[rank]));
    KernelRank& one = *ranks.back();
    run_choose(choose_arguments(one.problem, one.buffers, one.logits.data()), turns);
    if (config.capacity_scope == ::moesim::routing::CapacityScope::group) continue;
    AssignArguments assign = assign_arguments(one.problem, one.buffers);
    if (buffered_keys >= 0) assign.buffered_keys = std::min(buffered_keys, assign.buffered_keys);
    run_assign(assign, turns);
  }
  if (config.capacity_scope == ::moesim::routing::CapacityScope::group) assign_group(ranks, turns);
  for (const auto& rank : ranks) {
    run_weigh(weigh_arguments(rank->problem, rank->buffers), turns);
    if (rank->problem.rectified()) {
      run_collect(collect_arguments(rank->problem, rank->buffers), turns);
    }
  }
  return ranks;
}

}  // namespace moesim::kernels::routing
