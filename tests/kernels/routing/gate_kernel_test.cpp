#include "kernels/routing/gate.cuh"

#include <cmath>
#include <random>

#include "kernels/routing/compare.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "tests/kernels/routing/kernel_router.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::kernels;
using namespace moesim::kernels::routing;

namespace {

RouterProblem problem_of(int tokens, int experts, const std::string& name) {
  RouterProblem problem;
  problem.config = ::moesim::routing::parse_router(name, 0);
  problem.tokens = tokens;
  problem.experts = experts;
  return problem;
}

template <typename Element>
struct GateInput {
  std::vector<Vector16> tokens, weights;  // 16-byte alignment
  int tokens_count, experts, hidden;

  GateInput(int count, int expert_count, int width, unsigned seed)
      : tokens_count(count), experts(expert_count), hidden(width) {
    std::mt19937 engine(seed);
    for (auto* matrix : {&tokens, &weights}) {
      const int rows = matrix == &tokens ? count : expert_count;
      matrix->resize(static_cast<std::size_t>(rows * width) * sizeof(Element) / 16);
      auto* elements = reinterpret_cast<Element*>(matrix->data());
      for (int at = 0; at < rows * width; ++at) {
        elements[at] = from_float<Element>(static_cast<float>(engine()) * 0x1p-31F - 1.0F);
      }
    }
  }
  double logit(int token, int expert) const {
    const auto* x = reinterpret_cast<const Element*>(tokens.data()) + token * hidden;
    const auto* w = reinterpret_cast<const Element*>(weights.data()) + expert * hidden;
    double sum = 0;
    for (int at = 0; at < hidden; ++at) {
      sum += static_cast<double>(to_float(x[at])) * static_cast<double>(to_float(w[at]));
    }
    return sum;
  }
  void check(const std::vector<float>& logits) const {
    for (int token = 0; token < tokens_count; ++token) {
      for (int expert = 0; expert < experts; ++expert) {
        // `hidden` products below 1, added in fp32.
        REQUIRE(static_cast<double>(logits[static_cast<std::size_t>(token * experts + expert)]) ==
                Approx(logit(token, expert)).margin(1e-7 * hidden));
      }
    }
  }
};

// The gate's choices are those that choose_experts makes of the gate's logits.
void check_choices(const KernelRank& gated, const std::vector<float>& logits) {
  const KernelRank chosen(gated.problem, logits);
  run_choose(choose_arguments(chosen.problem, chosen.buffers, chosen.logits.data()),
             simt::Turns::forward);
  for (int token = 0; token < gated.problem.tokens; ++token) {
    for (int choice = 0; choice < gated.problem.choices(); ++choice) {
      const std::int64_t at = choice * gated.problem.stride() + token;
      REQUIRE(gated.buffers.expert[at] == chosen.buffers.expert[at]);
      REQUIRE(gated.buffers.probability[at] == chosen.buffers.probability[at]);
      REQUIRE(gated.buffers.slot[at] == slot_failed);
    }
    REQUIRE(gated.buffers.local_expert[token] == chosen.buffers.local_expert[token]);
    REQUIRE(gated.buffers.local_probability[token] == chosen.buffers.local_probability[token]);
  }
}

}  // namespace

TEST_CASE("the gate multiplies on matrix fragments and chooses from its sums") {
  int cases = 0;
  int with_many_choices = 0;
  for (const bool large : {false, true}) {
    for (const int experts : {3, 8, 16, 20, 32, 40, 64, 100, 128, 200, 300}) {
      for (const int tokens : {1, 130}) {
        const int hidden = std::vector<int>{8, 64, 200, 512}[static_cast<std::size_t>(cases % 4)];
        const GateInput<Bfloat16> input(tokens, experts, hidden, static_cast<unsigned>(cases));
        std::vector<float> logits(static_cast<std::size_t>(tokens * experts), 99.0F);
        // Above 8 choices the epilogue gives a token more lanes.
        const bool many_choices = experts >= 16 && cases % 4 == 3;
        KernelRank rank(problem_of(tokens, experts, many_choices ? "top10+fr+ir" : "top2+fr+ir"),
                        {});
        with_many_choices += many_choices ? 1 : 0;
        GateArguments in{input.tokens.data(), input.weights.data(), hidden, logits.data(),
                         choose_arguments(rank.problem, rank.buffers, logits.data())};
        with_gate_tile(experts, [&](auto tile) {
          constexpr int width = decltype(tile)::value;
          const int tiles = (experts + width - 1) / width;
          const int blocks = (tokens + gate_tokens - 1) / gate_tokens * tiles;
          const auto turns = static_cast<simt::Turns>(cases % 3);
          if (large) {
            simt::launch(
                {blocks, gate_threads, GateShape<width, true>::shared_bytes},
                [&] { gate_bfloat16<width, true>(in); }, turns);
          } else {
            simt::launch(
                {blocks, gate_threads, GateShape<width, false>::shared_bytes},
                [&] { gate_bfloat16<width, false>(in); }, turns);
          }
          if (tiles > 1) run_choose(in.choose, simt::Turns::forward);
        });
        INFO("S " << tokens << " E " << experts << " h " << hidden << " large " << large);
        input.check(logits);
        check_choices(rank, logits);
        ++cases;
      }
    }
  }
  CHECK(cases == 44);
  CHECK(with_many_choices == 9);
}

TEST_CASE("the fp32 gate multiplies in fp32") {
  for (const int experts : {5, 64, 130}) {
    const int hidden = 52;
    const GateInput<float> input(70, experts, hidden, 3);
    std::vector<float> logits(static_cast<std::size_t>(70 * experts), 99.0F);
    GateArguments in{input.tokens.data(), input.weights.data(), hidden, logits.data(), {}};
    in.choose.tokens = 70;
    in.choose.experts = experts;
    const int tiles = (experts + plain_tile - 1) / plain_tile;
    simt::launch({2 * tiles, gate_threads, gate_float32_shared}, [&] { gate_float32(in); });
    input.check(logits);
  }
}
