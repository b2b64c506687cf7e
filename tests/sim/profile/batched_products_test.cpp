#include "sim/profile/batched_products.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/statistics.hpp"
#include "sim/profile/unfused_ffn.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::profile;

TEST_CASE("one expert's batched products are products") {
  const Profile profile = Profile::load("h100-sxm");
  CHECK(batched_product(profile, {512, 4096, 1024, 1}).time_us ==
        profile.gemm(512, 4096, 1024).time_us);
  CHECK(batched_weight_gradient(profile, {512, 4096, 1024, 1}).time_us ==
        profile.gemm(1024, 4096, 512).time_us);
}

TEST_CASE("batched products take as long as one of all rows, or as reading the weights") {
  const Profile profile = Profile::load("h100-sxm");
  const Estimate many = batched_product(profile, {32768, 2048, 2048, 8});
  const Estimate dense = profile.gemm(32768, 2048, 2048);
  CHECK(many.time_us == dense.time_us);
  CHECK(many.time_us_p05 < dense.time_us_p05);  // what the law is off comes on top
  CHECK(many.time_us_p95 > dense.time_us_p95);
  CHECK(many.origin == Origin::derived);
  const Estimate few = batched_product(profile, {64, 2048, 2048, 64});
  CHECK(few.time_us == profile.memory(2.0 * 64 * 2048 * 2048).time_us);
  // Weights of experts without a row are not read.
  CHECK(batched_product(profile, {3, 2048, 2048, 64}).time_us ==
        batched_product(profile, {3, 2048, 2048, 3}).time_us);
  CHECK(batched_weight_gradient(profile, {3, 2048, 2048, 64}).time_us ==
        batched_weight_gradient(profile, {3, 2048, 2048, 3}).time_us);
  const std::vector<std::int64_t> three{1, 1, 1};
  std::vector<std::int64_t> of_many(64, 0);
  std::copy(three.begin(), three.end(), of_many.begin() + 20);
  CHECK(batched_expert_ffn(profile, of_many, 2048, 1408).time_us ==
        batched_expert_ffn(profile, three, 2048, 1408).time_us);
  // [n, k] gradients of all experts side by side, as deep as one expert has rows.
  CHECK(batched_weight_gradient(profile, {8 * 512, 2048, 1024, 8}).time_us ==
        profile.gemm(8 * 1024, 2048, 512).time_us);
  // Beyond what any sweep has: in proportion.
  const double longest = profile.gemm(65536, 2048, 1024).time_us;
  CHECK(batched_weight_gradient(profile, {256 * 512, 2048, 1024, 256}).time_us ==
        Approx(4 * profile.gemm(65536, 2048, 512).time_us));
  CHECK(batched_product(profile, {1 << 20, 2048, 1024, 8}).time_us == Approx(16 * longest));
}

namespace {

// The padded points of several experts that an H200 measured, in the shipped profile.
struct MeasuredFfn {
  std::int64_t rows, hidden, ffn, experts;
  bool backward;
  double time_us;
};

std::vector<MeasuredFfn> measured_ffns() {
  const auto document =
      nlohmann::json::parse(read_file(find_document("hardware", "h200-sxm-measured")));
  std::vector<MeasuredFfn> ffns;
  for (const auto& point : document.at("points")) {
    const auto& at = point.at("params");
    if (point.at("op") != "expert-ffn" || at.at("layout") != "padded" || at.at("experts") == 1) {
      continue;
    }
    ffns.push_back({at.at("rows"), at.at("hidden"), at.at("ffn"), at.at("experts"),
                    at.at("pass") == "backward", point.at("cold").at("median")});
  }
  return ffns;
}

double backward_us(const Profile& profile, const MeasuredFfn& of, bool batched) {
  const std::int64_t experts = batched ? of.experts : 1, rows = of.rows / of.experts * experts;
  double time_us = 0;
  for (const auto& [n, k] : {std::pair(2 * of.ffn, of.hidden), std::pair(of.hidden, of.ffn)}) {
    time_us += batched_product(profile, {rows, k, n, experts}).time_us +
               batched_weight_gradient(profile, {rows, n, k, experts}).time_us;
  }
  // Reads the gate and up halves and the gradient, writes two gradients.
  time_us += profile.memory(5.0 * 2 * static_cast<double>(rows * of.ffn), MemoryKernel::activation)
                 .time_us;
  return batched ? time_us : time_us * static_cast<double>(of.experts);
}

double forward_us(const Profile& profile, const MeasuredFfn& of, bool batched) {
  const std::vector<std::int64_t> load(static_cast<std::size_t>(of.experts), of.rows / of.experts);
  const auto price = batched ? batched_expert_ffn : separate_expert_ffn;
  return price(profile, load, of.hidden, of.ffn).time_us;
}

}  // namespace

// The points have no part in the curves: products alone do.
TEST_CASE("batched FFNs of an H200 are nearer to one product of all rows than to one per expert") {
  const Profile profile = Profile::load("h200-sxm-measured");
  for (const bool backward : {false, true}) {
    std::vector<double> batched, separate;
    for (const MeasuredFfn& ffn : measured_ffns()) {
      if (ffn.backward != backward) continue;
      const auto error = [&](bool in_one_call) {
        const double time_us = backward ? backward_us(profile, ffn, in_one_call)
                                        : forward_us(profile, ffn, in_one_call);
        return std::abs(time_us / ffn.time_us - 1);
      };
      batched.push_back(error(true));
      separate.push_back(error(false));
    }
    CAPTURE(backward, batched, separate);
    REQUIRE(batched.size() == 13);
    CHECK(quantile(batched, 0.5) < 0.1);
    CHECK(quantile(batched, 1) < 0.155);
    CHECK(quantile(separate, 0.5) > 0.45);
  }
}
