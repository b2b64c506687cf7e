#include "tools/moesim/base/interrupt.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <mutex>

#include "sim/base/error.hpp"

namespace moesim::tool {
namespace {

// A signal handler can reach nothing but objects of static life; these are its whole state.
std::atomic<bool> watched{false};
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// How far the command is. A text is written beside the one that a handler may be reading.
constexpr std::size_t longest = 240;
std::array<std::array<char, longest>, 2> texts{};
std::atomic<const char*> reached{nullptr};
std::mutex of_texts;       // of those who write
bool is_terminal = false;  // stderr, where a progress line stands

std::atomic<pid_t> child{0};
static_assert(std::atomic<pid_t>::is_always_lock_free);
// Files that live as long as the command: a handler reads no slot whose path is being written.
struct Removed {
  std::atomic<bool> is_set{false};
  std::array<char, 4096> path{};
};
std::array<Removed, 4> removed;

void say(const char* text) { static_cast<void>(::write(STDERR_FILENO, text, std::strlen(text))); }

void say_interrupted() {
  const char* const text = reached.load();
  if (is_terminal && text != nullptr) say("\r\033[K");
  say("moesim: interrupted");
  if (text != nullptr) {
    say(" at ");
    say(text);
  }
  say(": no result is kept\n");
}

void on_signal(int) {
  const bool is_watched = watched.load();
  if (is_watched && !interrupted.exchange(true)) return;
  if (!is_watched) say_interrupted();
  if (const pid_t started = child.load(); started > 0) ::kill(started, SIGTERM);
  for (const Removed& file : removed) {
    if (file.is_set.load()) ::unlink(file.path.data());
  }
  ::_exit(static_cast<int>(ExitCode::interrupted));
}

}  // namespace

void install_signal_handlers() {
  is_terminal = ::isatty(STDERR_FILENO) != 0;
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
  std::signal(SIGXFSZ, SIG_IGN);  // a file over `ulimit -f`
}

void set_reached(std::string_view text) {
  const std::lock_guard hold(of_texts);
  const char* const shown = reached.load();
  auto& next = shown == texts[0].data() ? texts[1] : texts[0];
  const std::size_t size = std::min(text.size(), longest - 1);
  std::copy_n(text.begin(), size, next.begin());
  next[size] = '\0';
  reached = size == 0 ? nullptr : next.data();
}

HeldSignals::HeldSignals() {
  sigset_t held;
  ::sigemptyset(&held);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&held, number);
  ::pthread_sigmask(SIG_BLOCK, &held, &before_);
}

HeldSignals::~HeldSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

EndedChild::EndedChild(pid_t started) { child = started; }

EndedChild::~EndedChild() { child = 0; }

RemovedFile::RemovedFile(const std::string& path) {
  for (std::size_t at = 0; at < removed.size(); ++at) {
    Removed& file = removed[at];
    if (file.is_set.load() || path.size() >= file.path.size()) continue;
    std::copy_n(path.c_str(), path.size() + 1, file.path.begin());
    file.is_set = true;
    place_ = static_cast<int>(at);
    return;
  }
}

RemovedFile::~RemovedFile() {
  if (place_ >= 0) removed[static_cast<std::size_t>(place_)].is_set = false;
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
