#include "tools/moesim/interrupt.hpp"

#include <unistd.h>

#include <csignal>

#include "sim/base/error.hpp"

namespace moesim::tool {
namespace {

// A signal handler can reach nothing but objects of static life; these are its whole state.
std::atomic<bool> watched{false};
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) {
  if (watched.load() && !interrupted.exchange(true)) return;
  ::_exit(static_cast<int>(ExitCode::interrupted));
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  // The terminal has gone; nohup says that this is no reason to end.
  struct sigaction before {};
  ::sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

void end_by_closed_pipe() {
  std::signal(SIGPIPE, SIG_DFL);
  std::raise(SIGPIPE);
}

InterruptWatch::InterruptWatch() {
  interrupted = false;
  watched = true;
}

InterruptWatch::~InterruptWatch() { watched = false; }

const std::atomic<bool>& InterruptWatch::flag() const { return interrupted; }

}  // namespace moesim::tool
