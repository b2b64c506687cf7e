#include "sim/routing/routers/router_name.hpp"

#include "sim/base/error.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const routing::RouterConfig config = routing::parse_router(fuzz::text_of(data, size), 0, 2);
    // A name that is printed is read as the same router.
    const std::string name = config.name();
    if (routing::parse_router(name, 0, config.top_k).name() != name) std::terminate();
    if (config.has_capacity()) static_cast<void>(config.capacity(4096, 64));
  } catch (const Error&) {  // an answer
  }
  return 0;
}
