#include "sim/base/formats/npy.hpp"

#include "sim/base/error.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const NpyArray array =
        NpyArray::parse_any_order(std::string(fuzz::text_of(data, size)), "input.npy");
    try {
      static_cast<void>(array.integers());
    } catch (const Error&) {
    }
    static_cast<void>(array.float16_or_32());
  } catch (const Error&) {  // an answer
  }
  return 0;
}
