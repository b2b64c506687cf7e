#pragma once

#include <atomic>
#include <string_view>

namespace moesim::tool {

// Ctrl-C and SIGTERM set a flag instead of ending the process while a watch lives, so that partial
// results can be saved; a second signal ends it at once with exit code 130. Without a watch, both
// signals end the process with 130 and a line that no result is kept. A write to a closed pipe is
// an error, not a signal.
void install_signal_handlers();

// How far the command is, for that line: "120 simulated". Empty: nothing to say.
void set_reached(std::string_view text);

// Ends the process as a closed pipe does where nothing handles it: by SIGPIPE, without a word.
void end_by_closed_pipe();

class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;  // the signal handler knows one flag only
  InterruptWatch& operator=(const InterruptWatch&) = delete;
  const std::atomic<bool>& flag() const;
};

}  // namespace moesim::tool
