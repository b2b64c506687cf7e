#include "sim/profile/profile.hpp"

#include "sim/base/error.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

static const fuzz::Folder folder;

// A figure or an Error; one that lacks a curve still answers the next question.
template <typename Question>
static void ask(const Question& question) {
  try {
    static_cast<void>(question());
  } catch (const Error&) {
  }
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto profile =
        profile::Profile::load(folder.put("input.json", fuzz::text_of(data, size)));
    for (const std::int64_t rows : {1, 300, 40'000}) {
      ask([&] { return profile.gemm(rows, 512, 4096); });
      ask([&] { return profile.attention({1, rows, 8, 8, 64}, true); });
      ask([&] { return profile.latent_attention(1, rows, 8, true); });
      ask([&] { return profile.quantize(rows, 512, "fp8"); });
      ask([&] { return profile.memory(1e3 * static_cast<double>(rows)); });
      ask([&] { return profile.permute(rows, 512, 2); });
      ask([&] { return profile.expert_ffn(rows, 512, 1024, 4); });
      const double bytes = 1e5 * static_cast<double>(rows);
      ask([&] { return profile.collective(profile::Collective::all_to_all, 2, bytes); });
    }
  } catch (const Error&) {  // an answer
  }
  return 0;
}
