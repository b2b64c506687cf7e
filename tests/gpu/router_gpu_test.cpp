#include <cmath>
#include <limits>
#include <random>

#include "kernels/base/bfloat16.cuh"
#include "kernels/base/device_buffer.hpp"
#include "kernels/routing/compare.hpp"
#include "kernels/routing/router.hpp"
#include "sim/base/error.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/tokens/gradient.hpp"
#include "tests/gpu/device.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::kernels;
using namespace moesim::kernels::routing;

namespace {

namespace reference = ::moesim::routing;

// Fresh inputs in every run; a failure names the seed.
unsigned fresh_seed() { return std::random_device()(); }

// levels > 0: so many values only, which makes ties.
std::vector<float> random_logits(int experts, int tokens, unsigned seed, int levels) {
  std::mt19937 engine(seed);
  std::vector<float> logits(static_cast<std::size_t>(experts) * static_cast<std::size_t>(tokens));
  for (float& value : logits) {
    const double uniform = static_cast<double>(engine()) * 0x1p-32;
    value = static_cast<float>(levels > 0 ? std::floor(uniform * levels) : 8 * uniform - 4);
    if (engine() % 64 == 0) value = -std::numeric_limits<float>::infinity();
  }
  return logits;
}

struct Routed {
  std::vector<unsigned char> host;  // the device's arrays
  RouterBuffers buffers;            // in `host`
};

Routed route_on_device(const RouterProblem& problem, const std::vector<float>& logits) {
  const DeviceBuffer<float> input(logits);
  DeviceBuffer<unsigned char> memory(buffer_bytes(problem));
  memory.fill(0x5A);
  const DeviceRouter router(problem, memory.data());
  MOESIM_CUDA(cudaMemset(router.buffers().invalid, 0, sizeof(std::int32_t)));
  router.route(input.data(), nullptr);
  Routed routed;
  routed.host = memory.download();
  routed.buffers = carve(routed.host.data(), problem);
  return routed;
}

void compare(const RouterProblem& problem, unsigned seed, int levels) {
  const std::vector<float> logits = random_logits(problem.experts, problem.tokens, seed, levels);
  const Routed routed = route_on_device(problem, logits);
  const reference::RankLogits rank{logits, problem.tokens};
  const auto expected =
      reference::route_group(problem.config, problem.experts, {&rank, 1}, problem.context);
  const auto& config = problem.config;
  INFO(config.name() << " S " << problem.tokens << " E " << problem.experts << " CF "
                     << config.capacity_factor.text() << " " << name_of(config.priority) << " "
                     << name_of(config.fill_order) << " seed " << seed);
  REQUIRE(*routed.buffers.invalid == 0);
  REQUIRE(difference(listed(problem, routed.buffers), expected.routes()) == "");
  for (int expert = 0; expert < problem.experts; ++expert) {
    REQUIRE(routed.buffers.kept_rows[expert] ==
            expected.kept_rows[static_cast<std::size_t>(expert)]);
  }
}

}  // namespace

TEST_CASE("the GPU routes as the reference does, over a grid") {
  MOESIM_NEEDS_GPU();
  int compared = 0;
  for (const int tokens : {0, 1, 100, 4096, 16384}) {
    for (const int experts : {8, 60, 64, 256, 512}) {
      for (const int top_k : {1, 2, 8}) {
        for (const char* suffix : {"", "+fr", "+ir", "+fr+ir"}) {
          RouterProblem problem;
          const bool fills = suffix[0] == '+' && suffix[1] == 'f';
          if (top_k + (fills ? 1 : 0) > experts) continue;
          problem.config = reference::parse_router("top" + std::to_string(top_k) + suffix, 0);
          const char* factors[] = {"0.5", "1", "2.2", "8"};
          problem.config.capacity_factor = Decimal::parse(factors[compared % 4], "factor");
          using reference::Priority;
          const Priority priorities[] = {Priority::token_max, Priority::own_score,
                                         Priority::position, Priority::random};
          problem.config.priority = priorities[compared / 4 % 4];
          problem.config.fill_order = static_cast<reference::FillOrder>(compared / 2 % 2);
          problem.config.ir_duplicates = static_cast<reference::IrDuplicates>(compared / 3 % 2);
          problem.config.weights = static_cast<reference::Weights>(compared % 3);
          problem.tokens = tokens;
          problem.experts = experts;
          problem.context.seed = static_cast<std::uint64_t>(compared);
          compare(problem, fresh_seed(), compared % 5 == 0 ? 4 : 0);
          ++compared;
        }
      }
    }
  }
  CHECK(compared > 250);
}

TEST_CASE("the GPU's gate multiplies and routes as its own logits say") {
  MOESIM_NEEDS_GPU();
  for (const int experts : {8, 16, 32, 64, 100, 128, 256}) {
    for (const int hidden : {64, 1032, 4096}) {
      RouterProblem problem;
      problem.config = reference::parse_router("top2+fr+ir", 0);
      problem.config.capacity_factor = Decimal::parse("1.2", "factor");
      problem.tokens = 1000;
      problem.experts = experts;
      const unsigned seed = fresh_seed();
      INFO("E " << experts << " h " << hidden << " seed " << seed);
      std::mt19937 engine(seed);
      const auto draw = [&](int rows) {
        std::vector<Bfloat16> values(static_cast<std::size_t>(rows) *
                                     static_cast<std::size_t>(hidden));
        for (Bfloat16& value : values) {
          value = to_bfloat16(static_cast<float>(engine()) * 0x1p-31F - 1.0F);
        }
        return values;
      };
      const auto x = draw(1000), w = draw(experts);
      const DeviceBuffer<Bfloat16> tokens(x), weights(w);
      DeviceBuffer<float> logits(static_cast<std::size_t>(1000 * experts));
      DeviceBuffer<unsigned char> memory(buffer_bytes(problem));
      const DeviceRouter router(problem, memory.data());
      MOESIM_CUDA(cudaMemset(router.buffers().invalid, 0, sizeof(std::int32_t)));
      router.gate_and_route(tokens.data(), weights.data(), hidden, true, logits.data(), nullptr);
      const auto sums = logits.download();
      for (int token = 0; token < 1000; token += 37) {
        for (int expert = 0; expert < experts; ++expert) {
          double expected = 0;
          for (int at = 0; at < hidden; ++at) {
            const auto left = static_cast<std::size_t>(token) * static_cast<std::size_t>(hidden);
            const auto right = static_cast<std::size_t>(expert) * static_cast<std::size_t>(hidden);
            expected += static_cast<double>(to_float(x[left + static_cast<std::size_t>(at)])) *
                        static_cast<double>(to_float(w[right + static_cast<std::size_t>(at)]));
          }
          // `hidden` products below 1, added in fp32 (tensor cores truncate: two bits more).
          REQUIRE(static_cast<double>(sums[static_cast<std::size_t>(token * experts + expert)]) ==
                  Approx(expected).margin(4e-7 * hidden));
        }
      }
      auto host = memory.download();
      const reference::RankLogits rank{sums, 1000};
      const auto expected = reference::route_group(problem.config, experts, {&rank, 1});
      REQUIRE(difference(listed(problem, carve(host.data(), problem)), expected.routes()) == "");
    }
  }
}

TEST_CASE("the GPU gives the same bits twice") {
  MOESIM_NEEDS_GPU();
  RouterProblem problem;
  problem.config = reference::parse_router("top2+fr+ir", 0);
  problem.config.capacity_factor = Decimal::parse("0.9", "factor");
  problem.tokens = 16384;
  problem.experts = 64;
  const auto logits = random_logits(64, 16384, fresh_seed(), 3);
  const Routed first = route_on_device(problem, logits);
  const Routed second = route_on_device(problem, logits);
  CHECK(first.host == second.host);
}

TEST_CASE("the GPU counts tokens with NaN or +inf and gives them no expert") {
  MOESIM_NEEDS_GPU();
  RouterProblem problem;
  problem.config = reference::parse_router("top2+fr+ir", 0);
  problem.tokens = 300;
  problem.experts = 64;
  auto logits = random_logits(64, 300, fresh_seed(), 0);
  logits[64 * 7 + 3] = std::nanf("");
  logits[64 * 299 + 63] = std::numeric_limits<float>::infinity();
  const Routed routed = route_on_device(problem, logits);
  CHECK(*routed.buffers.invalid == 2);
  for (const int token : {7, 299}) {
    CHECK(routed.buffers.expert[token] == no_expert);
    CHECK(routed.buffers.slot[token] == slot_failed);
    CHECK(routed.buffers.weight[token] == 0);
    CHECK(routed.buffers.ir_expert[token] == no_expert);
  }
}

TEST_CASE("the GPU's router gradient is the reference's") {
  MOESIM_NEEDS_GPU();
  for (const auto rule : {NormaliserRule::differentiated, NormaliserRule::straight_through}) {
    RouterProblem problem;
    problem.config = reference::parse_router("top2+fr+ir", 0);
    problem.config.capacity_factor = Decimal::parse("0.8", "factor");
    problem.tokens = 500;
    problem.experts = 16;
    const unsigned seed = fresh_seed();
    INFO("seed " << seed);
    const auto logits = random_logits(16, 500, seed, 0);
    const DeviceBuffer<float> input(logits);
    DeviceBuffer<unsigned char> memory(buffer_bytes(problem));
    const DeviceRouter router(problem, memory.data());
    router.route(input.data(), nullptr);
    std::mt19937 engine(seed + 1);
    std::vector<float> upstream(static_cast<std::size_t>(problem.stride() * problem.choices()));
    std::vector<float> ir_upstream(500);
    for (float& value : upstream) value = static_cast<float>(engine()) * 0x1p-31F - 1.0F;
    for (float& value : ir_upstream) value = static_cast<float>(engine()) * 0x1p-31F - 1.0F;
    const DeviceBuffer<float> device_upstream(upstream), device_ir(ir_upstream);
    DeviceBuffer<float> gradient(logits.size());
    router.backward(input.data(), device_upstream.data(), device_ir.data(), rule, gradient.data(),
                    nullptr);
    const auto result = gradient.download();
    auto host = memory.download();
    const RouterBuffers at = carve(host.data(), problem);
    for (int token = 0; token < 500; ++token) {
      std::vector<double> g(16);
      double sum = 0;
      for (std::size_t expert = 0; expert < 16; ++expert) {
        g[expert] =
            std::exp(static_cast<double>(logits[static_cast<std::size_t>(token) * 16 + expert]));
        sum += g[expert];
      }
      for (double& value : g) value /= sum;
      std::vector<reference::ProcessedRow> rows;
      for (int choice = 0; choice < problem.choices(); ++choice) {
        const std::int64_t place = choice * problem.stride() + token;
        if (at.slot[place] < 0) continue;
        rows.push_back(
            {at.expert[place], g[at.expert[place]], upstream[static_cast<std::size_t>(place)]});
      }
      if (at.ir_expert[token] != no_expert) {
        const auto missing =
            static_cast<double>(problem.config.top_k) - static_cast<double>(rows.size());
        rows.push_back({at.ir_expert[token], missing * g[at.ir_expert[token]],
                        ir_upstream[static_cast<std::size_t>(token)]});
      }
      const auto expected = reference::logit_gradient(
          g, rows,
          rule == NormaliserRule::differentiated ? reference::Normaliser::differentiated
                                                 : reference::Normaliser::straight_through);
      for (std::size_t expert = 0; expert < 16; ++expert) {
        // Sums of a few products below 1 with relative errors of 1e-6.
        REQUIRE(static_cast<double>(result[static_cast<std::size_t>(token) * 16 + expert]) ==
                Approx(expected[expert]).margin(4e-6));
      }
    }
  }
}

TEST_CASE("capacity over a group of GPUs is refused") {
  RouterProblem problem;
  problem.config = reference::parse_router("top2", 0);
  problem.config.capacity_scope = reference::CapacityScope::group;
  problem.tokens = 16;
  problem.experts = 8;
  problem.ranks = 4;
  CHECK_THROWS_AS(DeviceRouter(problem, nullptr), UsageError);
}
