#include "sim/profile/profile.hpp"

#include "sim/base/error.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

static const fuzz::Folder folder;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto profile =
        profile::Profile::load(folder.put("input.json", fuzz::text_of(data, size)));
    // What it answers with, too: a figure or an Error.
    for (const std::int64_t rows : {1, 300, 40'000}) {
      try {
        static_cast<void>(profile.gemm(rows, 512, 4096));
        static_cast<void>(profile.attention(1, rows, 8, 8, 128, true));
        static_cast<void>(profile.permute(rows, 512, 2));
        static_cast<void>(profile.expert_ffn(rows, 512, 1024, 4));
        static_cast<void>(profile.collective(profile::Collective::all_to_all, 4, 1e6));
      } catch (const Error&) {
      }
    }
  } catch (const Error&) {  // an answer
  }
  return 0;
}
