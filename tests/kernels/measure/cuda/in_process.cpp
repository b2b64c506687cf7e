#include "tests/kernels/measure/cuda/in_process.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/support/catch.hpp"

std::string in_process(const std::string& variable, const std::string& value,
                       const std::function<std::string()>& body) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv(variable.c_str(), value.c_str(), 1);
    std::string said;
    try {
      said = body();
    } catch (const std::exception& error) {
      said = std::string("thrown: ") + error.what();
    }
    const ssize_t written = ::write(ends[1], said.data(), said.size());
    ::_exit(written == static_cast<ssize_t>(said.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string said;
  char part[512];
  for (ssize_t got = 0; (got = ::read(ends[0], part, sizeof part)) > 0;) {
    said.append(part, static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return said;
}
