#include "sim/profile/nccl_tests/log.hpp"

#include "sim/base/error.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

static const fuzz::Folder folder;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string_view text = fuzz::text_of(data, size);
    static_cast<void>(profile::read_nccl_tests_log(folder.put(fuzz::log_name(text), text)));
  } catch (const Error&) {  // an answer
  }
  return 0;
}
