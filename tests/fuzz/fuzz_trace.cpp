#include "sim/routing/traces/trace.hpp"

#include "sim/base/error.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

static const fuzz::Folder folder;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    // A document, then its arrays "a.npy" and "b.npy".
    std::string_view rest = fuzz::text_of(data, size);
    const std::string path = folder.put("input.json", fuzz::take_part(rest));
    folder.put("a.npy", fuzz::take_part(rest));
    folder.put("b.npy", rest);
    static_cast<void>(routing::Trace::load(path));
  } catch (const Error&) {  // an answer
  }
  return 0;
}
