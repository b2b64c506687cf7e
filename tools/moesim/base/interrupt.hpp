#pragma once

#include <sys/types.h>

#include <atomic>
#include <csignal>
#include <string>
#include <string_view>

namespace moesim::tool {

// Ctrl-C and SIGTERM set a flag instead of ending the process while a watch lives, so that partial
// results can be saved; a second signal ends it at once with exit code 130. Without a watch, both
// signals end the process with 130 and a line that no result is kept. A write to a closed pipe or
// past the size that a file may have is an error, not a signal.
void install_signal_handlers();

// How far the command is, for that line: "120 simulated". Empty: nothing to say.
void set_reached(std::string_view text);

// Ends the process as a closed pipe does where nothing handles it: by SIGPIPE, without a word.
void end_by_closed_pipe();

// While one lives, those signals wait, of this thread: what it does with a child is done whole.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;  // lets them through once
  HeldSignals& operator=(const HeldSignals&) = delete;
  // Which signals waited before, for the child.
  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_{};
};

// While one lives, a signal that ends this process at once ends that child too. It has to go before
// the child is waited for: then the number may be another process's.
class EndedChild {
 public:
  explicit EndedChild(pid_t started);
  ~EndedChild();
  EndedChild(const EndedChild&) = delete;  // the signal handler knows one child only
  EndedChild& operator=(const EndedChild&) = delete;
};

// While one lives, such a signal removes that file. Of four at most; not thread-safe.
class RemovedFile {
 public:
  explicit RemovedFile(const std::string& path);
  ~RemovedFile();
  RemovedFile(const RemovedFile&) = delete;  // of a slot
  RemovedFile& operator=(const RemovedFile&) = delete;

 private:
  int place_ = -1;
};

class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;  // the signal handler knows one flag only
  InterruptWatch& operator=(const InterruptWatch&) = delete;
  const std::atomic<bool>& flag() const;
};

}  // namespace moesim::tool
