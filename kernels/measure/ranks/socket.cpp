#include "kernels/measure/ranks/socket.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

#include "sim/base/error.hpp"

namespace moesim::kernels::measure {
namespace {

constexpr std::uint32_t longest_text = 1U << 26;  // more is another protocol's first bytes

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const std::string& address, bool passive) {
  const std::size_t colon = address.rfind(':');
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  const int trouble = ::getaddrinfo(address.substr(0, colon).c_str(),
                                    address.substr(colon + 1).c_str(), &hints, &found);
  if (trouble != 0) {
    throw Error(fmt::format("{}: {}: is the host's name right?", address, ::gai_strerror(trouble)));
  }
  return {found, ::freeaddrinfo};
}

void prepare(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // A node that vanishes without a word is noticed within two minutes: asked after one without a
  // word, then every 10 s, 6 times. Linux's own idle time is two hours.
  const int idle_s = 60, interval_s = 10, probes = 6;
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

bool send_all(int socket, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t sent = ::send(socket, data, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    data += sent;
    size -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool receive_all(int socket, char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t got = ::recv(socket, data, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    data += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

int listen_at(const std::string& address, int backlog) {
  const Addresses found = resolve(address, true);
  int trouble = 0;
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    const int socket = ::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, 0);
    if (socket < 0) continue;
    const int on = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(socket, each->ai_addr, each->ai_addrlen) == 0 && ::listen(socket, backlog) == 0) {
      return socket;
    }
    trouble = errno;
    ::close(socket);
  }
  throw Error(
      fmt::format("rank 0 cannot listen at {}: {}; choose another port, or the address of "
                  "the node that rank 0 runs on",
                  address, std::strerror(trouble)));
}

int accept_within(int listener, double patience_s) {
  pollfd waiting{listener, POLLIN, 0};
  const int ready = ::poll(&waiting, 1, static_cast<int>(patience_s * 1000));
  if (ready <= 0) return -1;
  const int socket = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (socket >= 0) prepare(socket);
  return socket;
}

int connect_within(const std::string& address, double patience_s) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(patience_s);
  const Addresses found = resolve(address, false);
  do {
    for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
      const int socket = ::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, 0);
      if (socket < 0) continue;
      if (::connect(socket, each->ai_addr, each->ai_addrlen) == 0) {
        prepare(socket);
        return socket;
      }
      ::close(socket);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (Clock::now() < end);
  return -1;
}

bool send_text(int socket, const Text& text) {
  const auto size = static_cast<std::uint32_t>(text.content.size());
  std::string frame(1, static_cast<char>(text.kind));
  for (const unsigned shift : {24U, 16U, 8U, 0U}) {
    frame += static_cast<char>((size >> shift) & 0xffU);
  }
  frame += text.content;
  return send_all(socket, frame.data(), frame.size());
}

bool receive_text(int socket, Text& text) {
  unsigned char head[5];
  if (!receive_all(socket, reinterpret_cast<char*>(head), sizeof head)) return false;
  const std::uint32_t size = std::uint32_t{head[1]} << 24U | std::uint32_t{head[2]} << 16U |
                             std::uint32_t{head[3]} << 8U | std::uint32_t{head[4]};
  if ((head[0] != 'v' && head[0] != 'f') || size > longest_text) return false;
  text.kind = static_cast<TextKind>(head[0]);
  text.content.resize(size);
  return receive_all(socket, text.content.data(), size);
}

bool has_left(int socket) {
  char kind = 0;
  const ssize_t got = ::recv(socket, &kind, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got == 0) return true;
  if (got > 0) return kind == static_cast<char>(TextKind::farewell);
  return errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR;
}

}  // namespace moesim::kernels::measure
