#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace moesim::kernels::measure {

// The ranks that measure together. Every member calls the same operations in the same order.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The text of every rank, by rank. Throws Error naming a rank that is gone or does not answer.
  virtual std::vector<std::string> all_gather(const std::string& own) = 0;

  // Ranks that the call under way still waits for, as far as this member knows; may be called from
  // another thread.
  virtual std::vector<int> awaited() const { return {}; }
  // Why the group has broken up, or "": a rank that died while this one is in an exchange shows
  // here and nowhere else. May be called from another thread.
  virtual std::string lost() const { return ""; }
  // Tells the others why this rank leaves; their calls then throw, and lost() says so. It comes
  // before whatever waits for them, such as the end of a communicator. Only the first call counts.
  virtual void abandon(const std::string&) {}

  // What rank 0 says: a rule that each rank applied for itself would let one of them stop while
  // the others wait in a collective.
  std::string from_root(const std::string& text) {
    return all_gather(rank() == 0 ? text : std::string()).front();
  }
  void barrier() { all_gather(""); }
  std::vector<double> gather(double value);
};

// One process with one GPU.
class SoloGroup : public Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::string> all_gather(const std::string& own) override { return {own}; }
};

// The members of a group of threads in one process. If one leaves with an error and calls
// `abandon`, the others' calls throw instead of waiting for ever.
class ThreadGroups {
 public:
  explicit ThreadGroups(int size);
  ~ThreadGroups();
  ThreadGroups(const ThreadGroups&) = delete;  // the members point to it
  ThreadGroups& operator=(const ThreadGroups&) = delete;
  Group& member(int rank);
  void abandon(int rank, const std::string& reason);
  int first_gone() const;  // -1: none has left

 private:
  struct Shared;
  class Member;
  std::unique_ptr<Shared> shared_;
  std::vector<std::unique_ptr<Member>> members_;
};

// Calls `work` for each of `size` ranks at the same time, each a member of one group of threads. A
// rank that throws leaves the group, and the others' calls throw. When all have ended, the failure
// of the one that left first is thrown again: it knows why, the others only that it is gone.
void run_in_threads(int size, const std::function<void(Group&)>& work);

// Queues an exchange for the first time, or between work that is: `settle` waits for the own
// device, `queue` queues. No rank queues before all have settled, and none goes on before all have
// queued. The first launch of a kernel, and an allocation, may hold a lock of the driver while they
// wait for a device; where the ranks are threads of one process, the exchange on that device may
// wait for a rank that needs the lock (NVIDIA/nccl #613, openxla/xla #38932; CUDA programming
// guide, Lazy Loading).
void queue_together(Group& group, const std::function<void()>& settle,
                    const std::function<void()>& queue);

}  // namespace moesim::kernels::measure
