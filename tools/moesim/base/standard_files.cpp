#include "tools/moesim/base/standard_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <initializer_list>

namespace moesim::tool {

void open_standard_files() {
  // open() gives the lowest number that is free.
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(number, F_GETFD) != -1) continue;
    static_cast<void>(::open("/dev/null", number == STDERR_FILENO ? O_WRONLY : O_RDONLY));
  }
}

}  // namespace moesim::tool
