#include <cmath>
#include <string>

#include "sim/base/error.hpp"
#include "sim/profile/kernels/attention_curve.hpp"
#include "sim/profile/profile.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::profile;

namespace {

const std::string shipped = std::string(MOESIM_SOURCE_DIR) + "/profiles/hardware/";

}  // namespace

TEST_CASE("attention stays below the peak and comes near it for long sequences") {
  for (const std::string name : {"a100-sxm-80gb", "h100-sxm", "h200-sxm"}) {
    const Profile profile = Profile::load(shipped + name + ".json");
    for (const std::int64_t sequence : {2048, 4096, 8192, 16384, 32768}) {
      const Estimate estimate = profile.attention({2, sequence, 32, 32, 128}, false);
      // Causal: two products of s^2 / 2 d multiply-adds per head.
      const double flops = 2.0 * 32 * 2 * 2 * 128 * 0.5 * static_cast<double>(sequence * sequence);
      const double share = flops / (estimate.time_us * 1e-6) / profile.device().peak_bf16_flops;
      INFO(name << " sequence " << sequence << " share " << share);
      CHECK(share < 0.8);
      CHECK(share > 0.3);
    }
  }
}

TEST_CASE("long attention grows with the square of the length and with the batch") {
  const Profile profile = Profile::load(shipped + "a100-sxm-80gb.json");
  const double at_8k = profile.attention({1, 8192, 32, 32, 128}, false).time_us;
  const double at_16k = profile.attention({1, 16384, 32, 32, 128}, false).time_us;
  const double at_32k = profile.attention({1, 32768, 32, 32, 128}, false).time_us;
  CHECK(at_16k / at_8k == Approx(4).epsilon(0.06));
  CHECK(at_32k / at_16k == Approx(4).epsilon(0.06));
  const double batch_4 = profile.attention({4, 8192, 32, 32, 128}, false).time_us;
  CHECK(batch_4 / at_8k == Approx(4).epsilon(0.04));
}

TEST_CASE("attention never gets much cheaper with more of anything") {
  // The corrections are smooth, not monotone: a dip of more than 3 % would be an artefact.
  for (const std::string name : {"a100-sxm-80gb", "h100-sxm", "h200-sxm"}) {
    const Profile profile = Profile::load(shipped + name + ".json");
    double before = 0;
    for (double length = 128; length < 16384; length *= 1.06) {
      const auto sequence = static_cast<std::int64_t>(length);
      const double now = profile.attention({4, sequence, 32, 8, 128}, false).time_us;
      INFO(name << " sequence " << sequence << ": " << now << " us after " << before);
      CHECK(now > 0.97 * before);
      before = now;
    }
    before = 0;
    for (std::int64_t batch = 1; batch <= 64; ++batch) {
      const double now = profile.attention({batch, 2048, 32, 32, 128}, false).time_us;
      INFO(name << " batch " << batch << ": " << now << " us after " << before);
      CHECK(now > 0.97 * before);
      before = now;
    }
  }
}

TEST_CASE("the backward pass is the forward by FLOPs, marked assumed, with a wider bar") {
  const Profile profile = Profile::load(shipped + "h100-sxm.json");
  const Estimate forward = profile.attention({8, 2048, 32, 32, 128}, false);
  const Estimate backward = profile.attention({8, 2048, 32, 32, 128}, true);
  CHECK(backward.time_us == Approx(2.5 * forward.time_us));
  CHECK(forward.origin == Origin::published);
  CHECK(backward.origin == Origin::assumed);
  CHECK(backward.time_us_p95 / backward.time_us > forward.time_us_p95 / forward.time_us);
}

TEST_CASE("attention beyond what was measured is flagged, and its bar grows") {
  const Profile profile = Profile::load(shipped + "a100-sxm-80gb.json");
  const Estimate inside = profile.attention({1, 16384, 32, 32, 128}, false);
  const Estimate beyond = profile.attention({1, 65536, 32, 32, 128}, false);
  CHECK(inside.support == Support::interpolated);
  CHECK(beyond.support == Support::extrapolated);
  CHECK(beyond.time_us_p95 / beyond.time_us > inside.time_us_p95 / inside.time_us);
}

TEST_CASE("a head size without measurements is derived where a law carries, else refused") {
  const Profile a100 = Profile::load(shipped + "a100-sxm-80gb.json");
  const Estimate measured = a100.attention({8, 2048, 32, 32, 128}, false);
  const Estimate derived = a100.attention({8, 2048, 32, 32, 64}, false);
  CHECK(measured.origin == Origin::published);
  CHECK(derived.origin == Origin::derived);
  // Half the FLOPs at a somewhat lower rate.
  CHECK(derived.time_us / measured.time_us > 0.5);
  CHECK(derived.time_us / measured.time_us < 0.75);
  CHECK_THROWS_AS(a100.attention({8, 2048, 32, 32, 80}, false), Error);
  CHECK_THROWS_WITH(a100.attention({8, 2048, 32, 32, 80}, false),
                    ContainsSubstring("head-dim 80") && ContainsSubstring("64, 128, 192, 256"));
}

TEST_CASE("attention shapes that are none are usage errors") {
  const Profile profile = Profile::load(shipped + "h100-sxm.json");
  CHECK_THROWS_AS(profile.attention({0, 1, 1, 1, 128}, false), UsageError);
  CHECK_THROWS_AS(profile.attention({1, -5, 1, 1, 128}, false), UsageError);
  CHECK_THROWS_WITH(profile.attention({1, 128, 32, 5, 128}, false),
                    ContainsSubstring("no multiple"));
  const std::int64_t largest = (std::int64_t{1} << 31) - 1;
  CHECK(std::isfinite(profile.attention({largest, 1024, 64, 8, 128}, false).time_us));
  CHECK_THROWS_WITH(profile.attention({1, largest, 1, 1, 128}, false),
                    ContainsSubstring("16 times beyond the longest sequence measured, 16384"));
  CHECK_THROWS_AS(profile.attention({1, largest, 1, 1, 128}, false), SequenceTooLong);
  CHECK_THROWS_WITH(profile.attention({1, 16, largest, largest, 128}, false),
                    ContainsSubstring("16 times beyond the most measured"));
  CHECK_THROWS_AS(profile.attention({largest + 1, 1, 1, 1, 128}, false), UsageError);
}
