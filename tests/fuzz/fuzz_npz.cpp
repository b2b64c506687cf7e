#include "sim/base/formats/npz.hpp"

#include "sim/base/error.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

static const fuzz::Folder folder;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto archive = NpzArchive::load(folder.put("input.npz", fuzz::text_of(data, size)));
    for (const std::string& name : archive.names()) {
      try {
        static_cast<void>(archive.array(name));
      } catch (const Error&) {
      }
    }
  } catch (const Error&) {  // an answer
  }
  return 0;
}
