#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/measure/ranks/group.hpp"
#include "kernels/measure/ranks/launch.hpp"

namespace moesim::kernels::measure {

// Ranks in processes of their own, on one node or several: a star of TCP connections to rank 0. No
// MPI needed; it carries small texts (identifiers, decisions, times), never payload.
class TcpGroup : public Group {
 public:
  // Rank 0 listens at the launch's address until all ranks are there; the others try until it does.
  // Throws Error after `patience_s` seconds, saying which ranks did not come; also if a port is
  // taken, a host unknown, a rank comes twice or runs another version of the program.
  TcpGroup(const Launch& launch, const std::string& version, double patience_s = 60);
  ~TcpGroup() override;
  TcpGroup(const TcpGroup&) = delete;  // it owns sockets
  TcpGroup& operator=(const TcpGroup&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> all_gather(const std::string& own) override;
  std::vector<int> awaited() const override;
  std::string lost() const override;
  void abandon(const std::string& reason) override;

 private:
  void gather_peers(const std::string& address, const std::string& version, double patience_s);
  void take_in(const std::string& hello, const std::string& version, int socket);
  void join_root(const std::string& address, const std::string& version, double patience_s);
  std::vector<std::string> gather_as_root(const std::string& own);
  [[noreturn]] void break_up(const std::string& reason);
  void close_all();

  int rank_;
  int size_;
  bool left_ = false;
  std::vector<int> sockets_;  // of rank 0: by rank, -1 its own; else the one to rank 0
  mutable std::mutex mutex_;
  std::vector<int> awaited_;
};

}  // namespace moesim::kernels::measure
