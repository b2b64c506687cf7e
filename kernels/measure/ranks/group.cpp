#include "kernels/measure/ranks/group.hpp"

#include <fmt/format.h>

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>

#include "sim/base/error.hpp"
#include "sim/base/parallel.hpp"

namespace moesim::kernels::measure {

std::vector<double> Group::gather(double value) {
  std::string own(sizeof value, '\0');
  std::memcpy(own.data(), &value, sizeof value);
  std::vector<double> values;
  for (const std::string& text : all_gather(own)) {
    if (text.size() != sizeof value)
      throw Error(
          "a rank answered with something else: the ranks "
          "run different versions of this program");
    double each = 0;
    std::memcpy(&each, text.data(), sizeof each);
    values.push_back(each);
  }
  return values;
}

// A barrier that carries texts: the last one to arrive publishes them and opens the next round.
struct ThreadGroups::Shared {
  explicit Shared(int count) : texts(static_cast<std::size_t>(count)) {}
  std::mutex mutex;
  std::condition_variable arrived;
  std::vector<std::string> texts;
  std::vector<std::string> published;
  std::vector<bool> there = std::vector<bool>(texts.size());
  std::size_t waiting = 0;
  std::uint64_t round = 0;
  std::string gone;  // why the group broke up; "": it holds
  int first_gone = -1;
};

class ThreadGroups::Member : public Group {
 public:
  Member(Shared& shared, int rank) : shared_(shared), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(shared_.texts.size()); }

  std::vector<std::string> all_gather(const std::string& own) override {
    std::unique_lock lock(shared_.mutex);
    check();
    shared_.texts[static_cast<std::size_t>(rank_)] = own;
    shared_.there[static_cast<std::size_t>(rank_)] = true;
    if (++shared_.waiting == shared_.texts.size()) {
      shared_.there.assign(shared_.texts.size(), false);
      shared_.published = shared_.texts;
      shared_.waiting = 0;
      ++shared_.round;
      shared_.arrived.notify_all();
      return shared_.published;
    }
    const std::uint64_t mine = shared_.round;
    shared_.arrived.wait(lock, [&] { return shared_.round != mine || !shared_.gone.empty(); });
    if (shared_.round == mine) check();
    return shared_.published;
  }

  std::vector<int> awaited() const override {
    const std::lock_guard lock(shared_.mutex);
    std::vector<int> ranks;
    if (!shared_.there[static_cast<std::size_t>(rank_)]) return ranks;  // it waits for no rank
    for (int rank = 0; rank < size(); ++rank) {
      if (!shared_.there[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
    }
    return ranks;
  }

  std::string lost() const override {
    const std::lock_guard lock(shared_.mutex);
    return shared_.gone;
  }

  void abandon(const std::string& reason) override {
    const std::lock_guard lock(shared_.mutex);
    if (!shared_.gone.empty()) return;
    shared_.gone = fmt::format("rank {} is gone: {}", rank_, reason);
    shared_.first_gone = rank_;
    shared_.arrived.notify_all();
  }

 private:
  void check() const {
    if (!shared_.gone.empty()) throw Error(shared_.gone);
  }
  Shared& shared_;
  int rank_;
};

ThreadGroups::ThreadGroups(int size) : shared_(std::make_unique<Shared>(size)) {
  for (int rank = 0; rank < size; ++rank) {
    members_.push_back(std::make_unique<Member>(*shared_, rank));
  }
}

ThreadGroups::~ThreadGroups() = default;

Group& ThreadGroups::member(int rank) { return *members_.at(static_cast<std::size_t>(rank)); }

void run_in_threads(int size, const std::function<void(Group&)>& work) {
  ThreadGroups groups(size);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  // As many threads as ranks: each has its own while others wait.
  parallel_for(static_cast<std::size_t>(size), size, [&](std::size_t index) {
    const int rank = static_cast<int>(index);
    try {
      work(groups.member(rank));
    } catch (const std::exception& error) {
      failures[index] = std::current_exception();
      groups.abandon(rank, error.what());
    }
  });
  // What the first one to leave threw, which others may only have heard of.
  const int first = groups.first_gone();
  if (first >= 0 && failures[static_cast<std::size_t>(first)] != nullptr) {
    std::rethrow_exception(failures[static_cast<std::size_t>(first)]);
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
}

void queue_together(Group& group, const std::function<void()>& settle,
                    const std::function<void()>& queue) {
  settle();
  group.barrier();
  queue();
  group.barrier();
}

void ThreadGroups::abandon(int rank, const std::string& reason) { member(rank).abandon(reason); }

int ThreadGroups::first_gone() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->first_gone;
}

}  // namespace moesim::kernels::measure
