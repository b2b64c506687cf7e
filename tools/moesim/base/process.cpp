#include "tools/moesim/base/process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>

#include "tools/moesim/base/interrupt.hpp"

namespace moesim::tool {

int run_process(const std::vector<std::string>& words, bool quiet) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (quiet) {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  } else {
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  }
  pid_t child = 0;
  std::optional<EndedChild> ended;
  {
    const HeldSignals held;
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attributes, &held.before());
    const int code =
        posix_spawnp(&child, arguments[0], &actions, &attributes, arguments.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (code != 0) return 127;
    ended.emplace(child);
  }
  // The number stays the child's until waitpid(), when no signal ends it any more.
  siginfo_t end{};
  while (::waitid(P_PID, static_cast<id_t>(child), &end, WEXITED | WNOWAIT) < 0) {
    if (errno != EINTR) return 127;
  }
  ended.reset();
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return 127;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string plotting_python() {
  std::vector<std::string> candidates{"python3", "/usr/bin/python3"};
  const char* chosen = std::getenv("MOESIM_PYTHON");
  if (chosen != nullptr && *chosen != '\0') candidates = {chosen};
  for (const std::string& python : candidates) {
    if (python_has(python, "matplotlib")) return python;
  }
  return "";
}

bool python_has(const std::string& python, const std::string& package) {
  // Not in the folder of the caller ('' in sys.path): a file matplotlib.py there is no library.
  const std::string probe =
      "import sys; sys.path = [folder for folder in sys.path if folder]; import importlib.util; "
      "sys.exit(importlib.util.find_spec('" +
      package + "') is None)";
  return run_process({python, "-c", probe}, true) == 0;
}

}  // namespace moesim::tool
