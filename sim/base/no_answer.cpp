#include "sim/base/no_answer.hpp"

#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"

namespace moesim {

std::string why_unanswered() {
  try {
    throw;
  } catch (const BrokenDocument&) {
    throw;
  } catch (const UnreadableFile&) {
    throw;
  } catch (const UnknownDocument&) {
    throw;
  } catch (const UsageError& error) {
    return error.what();
  } catch (const NotMeasured& error) {
    return error.what();
  }
}

}  // namespace moesim
