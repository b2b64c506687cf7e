#include "kernels/measure/ranks/tcp_group.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

#include "kernels/measure/ranks/socket.hpp"
#include "sim/base/error.hpp"

namespace moesim::kernels::measure {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The texts of all ranks in one: each as its length, a colon, its bytes.
std::string pack(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) packed += fmt::format("{}:{}", text.size(), text);
  return packed;
}

std::vector<std::string> unpack(const std::string& packed) {
  std::vector<std::string> texts;
  std::size_t at = 0;
  while (at < packed.size()) {
    const std::size_t colon = packed.find(':', at);
    const std::size_t size = std::stoul(packed.substr(at, colon - at));
    texts.push_back(packed.substr(colon + 1, size));
    at = colon + 1 + size;
  }
  return texts;
}

std::string greeting(const std::string& version, int rank, int size) {
  return fmt::format("moesim {} rank {} of {}", version, rank, size);
}

// The rank that a greeting names, if it is the one that this group expects.
int rank_of(const std::string& text, const std::string& version, int size) {
  for (int rank = 1; rank < size; ++rank) {
    if (text == greeting(version, rank, size)) return rank;
  }
  throw Error(
      fmt::format("a process came as '{}', expected '{}': start all ranks with the same "
                  "program and the same number of ranks",
                  text, greeting(version, 1, size)));
}

}  // namespace

TcpGroup::TcpGroup(const Launch& launch, const std::string& version, double patience_s)
    : rank_(launch.rank), size_(launch.ranks) {
  try {
    if (rank_ == 0) {
      gather_peers(launch.address, version, patience_s);
    } else {
      join_root(launch.address, version, patience_s);
    }
  } catch (...) {
    close_all();
    throw;
  }
}

TcpGroup::~TcpGroup() { close_all(); }

void TcpGroup::close_all() {
  for (int& socket : sockets_) {
    if (socket >= 0) ::close(socket);
    socket = -1;
  }
}

void TcpGroup::take_in(const std::string& hello, const std::string& version, int socket) {
  int& place = sockets_[static_cast<std::size_t>(rank_of(hello, version, size_))];
  if (place >= 0) {
    throw Error(fmt::format("'{}' came twice: two processes have the same rank", hello));
  }
  place = socket;
}

void TcpGroup::gather_peers(const std::string& address, const std::string& version,
                            double patience_s) {
  sockets_.assign(static_cast<std::size_t>(size_), -1);
  const int listener = listen_at(address, size_);
  const double end = seconds_now() + patience_s;
  try {
    for (int there = 1; there < size_;) {
      const int socket = accept_within(listener, std::max(0.0, end - seconds_now()));
      if (socket < 0) {
        std::vector<int> absent;
        for (int rank = 1; rank < size_; ++rank) {
          if (sockets_[static_cast<std::size_t>(rank)] < 0) absent.push_back(rank);
        }
        throw Error(fmt::format("after {:.0f} s no word at {} of rank {}: were all {} started, and "
                                "do they reach this address?",
                                patience_s, address, fmt::join(absent, ", "), size_),
                    ExitCode::timeout);
      }
      Text hello;
      if (!receive_text(socket, hello)) {  // a port scanner, or a rank that died at once
        ::close(socket);
        continue;
      }
      try {
        take_in(hello.content, version, socket);
      } catch (const Error& error) {
        send_text(socket, {TextKind::farewell, error.what()});
        ::close(socket);
        throw;
      }
      ++there;
    }
  } catch (const Error& error) {
    ::close(listener);
    abandon(error.what());
    throw;
  }
  ::close(listener);
}

void TcpGroup::join_root(const std::string& address, const std::string& version,
                         double patience_s) {
  const int socket = connect_within(address, patience_s);
  if (socket < 0) {
    throw Error(fmt::format("rank {}: nobody listens at {} after {:.0f} s: was rank 0 started, and "
                            "does this node reach that address?",
                            rank_, address, patience_s),
                ExitCode::timeout);
  }
  sockets_ = {socket};
  send_text(socket, {TextKind::value, greeting(version, rank_, size_)});
}

std::vector<int> TcpGroup::awaited() const {
  const std::lock_guard lock(mutex_);
  return awaited_;
}

std::string TcpGroup::lost() const {
  for (std::size_t place = 0; place < sockets_.size(); ++place) {
    if (sockets_[place] < 0 || !has_left(sockets_[place])) continue;
    return fmt::format("rank {} is gone", rank_ == 0 ? place : 0);
  }
  return "";
}

void TcpGroup::break_up(const std::string& reason) {
  abandon(reason);
  throw Error(reason);
}

void TcpGroup::abandon(const std::string& reason) {
  if (std::exchange(left_, true)) return;
  for (const int socket : sockets_) {
    if (socket >= 0) send_text(socket, {TextKind::farewell, reason});
  }
}

std::vector<std::string> TcpGroup::gather_as_root(const std::string& own) {
  std::vector<std::string> texts(static_cast<std::size_t>(size_));
  texts[0] = own;
  for (int rank = 1; rank < size_; ++rank) {
    {
      const std::lock_guard lock(mutex_);
      awaited_ = {rank};
    }
    Text text;
    if (!receive_text(sockets_[static_cast<std::size_t>(rank)], text)) {
      break_up(fmt::format("rank {} is gone: its own messages say why", rank));
    }
    if (text.kind == TextKind::farewell) {
      break_up(fmt::format("rank {} is gone: {}", rank, text.content));
    }
    texts[static_cast<std::size_t>(rank)] = text.content;
  }
  {
    const std::lock_guard lock(mutex_);
    awaited_.clear();
  }
  const std::string packed = pack(texts);
  for (int rank = 1; rank < size_; ++rank) {
    send_text(sockets_[static_cast<std::size_t>(rank)], {TextKind::value, packed});
  }
  return texts;
}

std::vector<std::string> TcpGroup::all_gather(const std::string& own) {
  if (rank_ == 0) return gather_as_root(own);
  Text text;
  const std::string lost = fmt::format("rank {}: rank 0 is gone: its own messages say why", rank_);
  if (!send_text(sockets_[0], {TextKind::value, own})) {
    // What it said before it left, if it did.
    if (receive_text(sockets_[0], text) && text.kind == TextKind::farewell) {
      throw Error(text.content);
    }
    throw Error(lost);
  }
  {
    const std::lock_guard lock(mutex_);
    awaited_ = {0};
  }
  const bool answered = receive_text(sockets_[0], text);
  {
    const std::lock_guard lock(mutex_);
    awaited_.clear();
  }
  if (!answered) throw Error(lost);
  if (text.kind == TextKind::farewell) throw Error(text.content);
  return unpack(text.content);
}

}  // namespace moesim::kernels::measure
