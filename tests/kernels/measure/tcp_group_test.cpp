#include "kernels/measure/ranks/tcp_group.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "kernels/measure/ranks/socket.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;
using measure::Launch;
using measure::TcpGroup;

namespace {

// A port of the loopback device that nobody has.
std::string free_address() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ::bind(socket, reinterpret_cast<sockaddr*>(&any), sizeof any);
  socklen_t size = sizeof any;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&any), &size);
  ::close(socket);
  return "127.0.0.1:" + std::to_string(ntohs(any.sin_port));
}

Launch launch_of(int rank, int ranks, const std::string& address) {
  Launch launch;
  launch.rank = rank;
  launch.ranks = ranks;
  launch.address = address;
  launch.source = "test";
  return launch;
}

// Runs `body` in a process of its own; its exit code is what the body returns.
pid_t in_process(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  int code = 99;
  try {
    code = body();
  } catch (const moesim::Error&) {
    code = 98;
  }
  ::_exit(code);
}

int exit_code(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

TEST_CASE("processes find each other over the loopback device and agree") {
  constexpr int ranks = 4;
  const std::string address = free_address();
  std::vector<pid_t> children;
  for (int rank = 1; rank < ranks; ++rank) {
    children.push_back(in_process([&] {
      TcpGroup group(launch_of(rank, ranks, address), "0.1.0", 20);
      const std::string own = std::string(static_cast<std::size_t>(rank) * 1000, 'a' + rank);
      const auto texts = group.all_gather(own);
      if (texts.size() != ranks || texts[0] != "root:0\n" ||
          texts[static_cast<std::size_t>(rank)] != own)
        return 1;
      if (group.from_root("mine") != "the root's") return 2;
      for (int round = 0; round < 500; ++round) {
        const auto values = group.gather(rank + 0.25 * round);
        for (int other = 0; other < ranks; ++other) {
          if (values[static_cast<std::size_t>(other)] != other + 0.25 * round) return 3;
        }
      }
      return 0;
    }));
  }
  TcpGroup group(launch_of(0, ranks, address), "0.1.0", 20);
  const auto texts = group.all_gather("root:0\n");
  CHECK(texts[3] == std::string(3000, 'd'));
  CHECK(group.from_root("the root's") == "the root's");
  for (int round = 0; round < 500; ++round) group.gather(0.25 * round);
  CHECK(group.awaited().empty());
  for (const pid_t child : children) CHECK(exit_code(child) == 0);
}

TEST_CASE("a rank that dies is named to all others") {
  const std::string address = free_address();
  const pid_t dying = in_process([&] {
    TcpGroup group(launch_of(2, 3, address), "0.1.0", 20);
    group.barrier();
    ::_exit(7);  // without a word, as a crash
    return 0;
  });
  const pid_t other = in_process([&] {
    TcpGroup group(launch_of(1, 3, address), "0.1.0", 20);
    group.barrier();
    try {
      group.barrier();
      return 1;
    } catch (const moesim::Error& error) {
      return std::string(error.what()).find("rank 2 is gone") == std::string::npos ? 2 : 0;
    }
  });
  TcpGroup group(launch_of(0, 3, address), "0.1.0", 20);
  group.barrier();
  CHECK_THROWS_WITH(group.barrier(), ContainsSubstring("rank 2 is gone"));
  CHECK(exit_code(dying) == 7);
  CHECK(exit_code(other) == 0);
}

TEST_CASE("a rank that leaves with a reason passes it on") {
  const std::string address = free_address();
  const pid_t leaving = in_process([&] {
    TcpGroup group(launch_of(1, 2, address), "0.1.0", 20);
    group.abandon("CUDA: an illegal address was read");
    return 0;
  });
  TcpGroup group(launch_of(0, 2, address), "0.1.0", 20);
  CHECK_THROWS_WITH(group.barrier(), "rank 1 is gone: CUDA: an illegal address was read");
  CHECK(exit_code(leaving) == 0);
}

TEST_CASE("if rank 0 dies the others hear it") {
  const std::string address = free_address();
  const pid_t root = in_process([&] {
    TcpGroup group(launch_of(0, 2, address), "0.1.0", 20);
    return 5;
  });
  TcpGroup group(launch_of(1, 2, address), "0.1.0", 20);
  CHECK_THROWS_WITH(group.barrier(), ContainsSubstring("rank 0 is gone"));
  CHECK(exit_code(root) == 5);
}

TEST_CASE("ranks that never come are named, with the exit code of a timeout") {
  const std::string address = free_address();
  try {
    const TcpGroup group(launch_of(0, 3, address), "0.1.0", 0.2);
    FAIL("nobody came, and yet there is a group");
  } catch (const moesim::Error& error) {
    CHECK_THAT(error.what(), ContainsSubstring("rank 1, 2"));
    CHECK(error.code() == moesim::ExitCode::timeout);
  }
  CHECK_THROWS_WITH(TcpGroup(launch_of(1, 3, address), "0.1.0", 0.2),
                    ContainsSubstring("nobody listens at " + address));
}

TEST_CASE("another version or number of ranks is refused") {
  const std::string address = free_address();
  const pid_t other = in_process([&] {
    TcpGroup group(launch_of(1, 2, address), "0.2.0", 20);
    try {
      group.barrier();
      return 1;
    } catch (const moesim::Error&) {
      return 0;
    }
  });
  CHECK_THROWS_WITH(TcpGroup(launch_of(0, 2, address), "0.1.0", 20),
                    ContainsSubstring("'moesim 0.2.0 rank 1 of 2'"));
  CHECK(exit_code(other) == 0);
}

TEST_CASE("two processes of the same rank are refused") {
  const std::string address = free_address();
  const auto come = [&] {
    TcpGroup group(launch_of(1, 3, address), "0.1.0", 20);
    try {
      group.barrier();
      return 1;
    } catch (const moesim::Error&) {
      return 0;
    }
  };
  const pid_t first = in_process(come), second = in_process(come);
  CHECK_THROWS_WITH(TcpGroup(launch_of(0, 3, address), "0.1.0", 20),
                    ContainsSubstring("came twice"));
  CHECK(exit_code(first) == 0);
  CHECK(exit_code(second) == 0);
}

TEST_CASE("a taken port is said") {
  const std::string address = free_address();
  const int taken = measure::listen_at(address, 1);
  CHECK_THROWS_WITH(TcpGroup(launch_of(0, 2, address), "0.1.0", 1),
                    ContainsSubstring("cannot listen at " + address));
  ::close(taken);
}
