#pragma once

#include <string>

namespace moesim::kernels::measure {

// Stream sockets that carry texts: a kind, a length, the bytes. Descriptors are owned by the
// caller.

// Listens at host:port. Throws Error naming the address and the reason.
int listen_at(const std::string& address, int backlog);
// The next connection, or -1 if none came within `patience_s`.
int accept_within(int listener, double patience_s);
// A connection to host:port, tried until `patience_s` have passed; -1 if no process listened.
// Throws Error for an unknown host.
int connect_within(const std::string& address, double patience_s);

enum class TextKind : char { value = 'v', farewell = 'f' };
struct Text {
  TextKind kind = TextKind::value;
  std::string content;
};
// False if the peer is gone.
bool send_text(int socket, const Text& text);
bool receive_text(int socket, Text& text);
// Whether the peer has closed its end, or a farewell is what comes next. Takes nothing, waits for
// nothing.
bool has_left(int socket);

}  // namespace moesim::kernels::measure
