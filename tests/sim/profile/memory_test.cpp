#include <string>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/profile/kernels/memory_curve.hpp"
#include "sim/profile/profile.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::profile;

namespace {

const std::string shipped = std::string(MOESIM_SOURCE_DIR) + "/profiles/hardware/";

}  // namespace

TEST_CASE("memory-bound kernels stream below the peak once out of the cache") {
  for (const std::string name : {"a100-sxm-80gb", "h100-sxm", "h200-sxm"}) {
    const Profile profile = Profile::load(shipped + name + ".json");
    const double peak = profile.device().hbm_bandwidth.bytes_per_second;
    for (const MemoryKernel kernel :
         {MemoryKernel::streaming, MemoryKernel::activation, MemoryKernel::normalization}) {
      double before = 0;
      for (double bytes = 64; bytes < 1e11; bytes *= 1.7) {
        const Estimate estimate = profile.memory(bytes, kernel);
        INFO(name << " " << name_of(kernel) << " " << bytes);
        CHECK(estimate.time_us >= before);
        before = estimate.time_us;
      }
      const double share = 1e11 / (profile.memory(1e11, kernel).time_us * 1e-6) / peak;
      INFO(name << " " << name_of(kernel) << " share of peak " << share);
      CHECK(share < 0.97);
      CHECK(share > 0.3);
    }
  }
}

TEST_CASE("streaming is the fastest family, and the default") {
  const Profile profile = Profile::load(shipped + "a100-sxm-80gb.json");
  const double streaming = profile.memory(4e8).time_us;
  CHECK(streaming == profile.memory(4e8, MemoryKernel::streaming).time_us);
  CHECK(streaming < profile.memory(4e8, MemoryKernel::activation).time_us);
  CHECK(streaming < profile.memory(4e8, MemoryKernel::normalization).time_us);
}

TEST_CASE("H200's memory-bound kernels are derived from the ratio of bandwidths") {
  const Profile h100 = Profile::load(shipped + "h100-sxm.json");
  const Profile h200 = Profile::load(shipped + "h200-sxm.json");
  CHECK(h200.memory(1e9).origin == Origin::derived);
  CHECK(h100.memory(1e9).origin == Origin::published);
  // Far beyond the cache the bytes decide: 3.35 TB/s against 4.8 TB/s.
  const double slope_h100 = h100.memory(3e9).time_us - h100.memory(2e9).time_us;
  const double slope_h200 = h200.memory(3e9).time_us - h200.memory(2e9).time_us;
  CHECK(slope_h200 / slope_h100 == Approx(3.35 / 4.8).epsilon(1e-4));
  // Inside the cache nothing changes.
  CHECK(h200.memory(1e6).time_us == Approx(h100.memory(1e6).time_us));
}

TEST_CASE("permute and combine move each token and each routed row once") {
  const Profile profile = Profile::load(shipped + "h200-sxm.json");
  // sim/step/README.md: 2 S h + 2 rows h bytes; the range of the best open kernels is 50-61 % of
  // the peak.
  const double bytes = 2.0 * 16384 * 4096 * (1 + 2);
  const Estimate permute = profile.permute(16384, 4096, 2);
  const double share =
      bytes / (permute.time_us * 1e-6) / profile.device().hbm_bandwidth.bytes_per_second;
  CHECK(share > 0.48);
  CHECK(share < 0.62);
  CHECK(permute.origin == Origin::assumed);
  CHECK(profile.combine(16384, 4096, 2).time_us == permute.time_us);
  CHECK(profile.permute_rows(16384, 2 * 16384, 4096).time_us == permute.time_us);
  CHECK(profile.permute_rows(16384, 0, 4096).time_us < permute.time_us);
  CHECK_THROWS_AS(profile.permute(16384, 4096, 0), UsageError);
  CHECK_THROWS_AS(profile.permute_rows(16384, -1, 4096), UsageError);
  CHECK_THROWS_AS(profile.combine(0, 4096, 2), UsageError);
  CHECK_THROWS_AS(profile.permute(std::int64_t{1} << 40, 4096, std::int64_t{1} << 40), UsageError);
  // 2^23 tokens of 8 KiB, read once and written twice, are beyond 80 GiB.
  CHECK_THROWS_AS(profile.permute(1 << 23, 4096, 2), BeyondMemory);
}

TEST_CASE("sizes that are none are usage errors") {
  const Profile profile = Profile::load(shipped + "h100-sxm.json");
  CHECK_THROWS_AS(profile.memory(0), UsageError);
  CHECK_THROWS_AS(profile.memory(-1), UsageError);
  CHECK(profile.memory(1).support == Support::extrapolated);
  CHECK(profile.memory(1e12).support == Support::extrapolated);
  CHECK(profile.memory(1e8).support == Support::interpolated);
}
