#undef _FORTIFY_SOURCE  // its longjmp refuses to change stacks

#include "tests/support/simt/executor.hpp"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include <ucontext.h>

#include "kernels/base/simt_thread.hpp"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace moesim::kernels::simt {

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

// A sanitizer clears the shadow of a whole stack at every change to it.
constexpr std::size_t stack_bytes = sanitized ? 128 * 1024 : 96 * 1024;
constexpr std::size_t guard_bytes = 256;
constexpr unsigned char poison = 0xA5;
constexpr int lanes = 32;

// Contexts are made by ucontext; later changes go by setjmp, which spares two system calls each.
// Sanitizers know the former only.
struct Context {
  ucontext_t context{};
  std::jmp_buf jump{};
  bool started = false;
#ifdef __SANITIZE_THREAD__
  void* fiber = nullptr;  // its stack of calls, for the thread sanitizer
#endif
};

#ifdef __SANITIZE_THREAD__
void announce(Context& from, Context& to) {
  from.fiber = __tsan_get_current_fiber();
  if (to.fiber == nullptr) to.fiber = __tsan_create_fiber(0);
  __tsan_switch_to_fiber(to.fiber, 0);
}
void forget(Context& context) {
  if (context.fiber != nullptr) __tsan_destroy_fiber(context.fiber);
}
#else
void announce(Context&, Context&) {}
void forget(Context&) {}
#endif

[[gnu::noinline]] void change(Context& from, Context& to) {
  if (sanitized) {
    announce(from, to);
    swapcontext(&from.context, &to.context);
    return;
  }
  if (_setjmp(from.jump) != 0) return;
  from.started = true;
  if (to.started) _longjmp(to.jump, 1);
  to.started = true;
  setcontext(&to.context);
}

enum class State { ready, at_barrier, at_part, in_warp, done };

struct Copy {
  void* to = nullptr;
  const void* from = nullptr;
};

struct Fiber {
  Context context;
  std::unique_ptr<unsigned char[]> stack;
  State state = State::done;
  Place place;
  int line = 0;
  std::vector<Copy> open_copies;
  std::deque<std::vector<Copy>> groups;
};

struct Warp {
  std::uint64_t values[2][lanes] = {};
  int phase = 0;
  int arrived = 0;
  int line = 0;
};

// A barrier of some of a block's threads.
struct Part {
  int arrived = 0;
  int threads = 0;
  int line = 0;
};
constexpr int most_parts = 15;

// Stacks of earlier launches: their pages are there already.
thread_local std::vector<std::unique_ptr<unsigned char[]>> stacks;

class Machine {
 public:
  Machine(const LaunchShape& shape, const std::function<void()>& kernel, Turns turns)
      : shape_(shape), kernel_(kernel), turns_(turns), random_(shape.blocks * 31 + shape.threads) {
    if (shape.threads < lanes || shape.threads % lanes != 0 || shape.threads > 1024) {
      throw Fault("a block of " + std::to_string(shape.threads) +
                  " threads: 32 to 1024 in whole warps are possible");
    }
    fibers_.resize(static_cast<std::size_t>(shape.threads));
    warps_.resize(fibers_.size() / lanes);
    shared_.resize(shape.shared_bytes + guard_bytes + 128);
    for (Fiber& fiber : fibers_) {
      if (stacks.empty()) stacks.emplace_back(new unsigned char[stack_bytes]);
      fiber.stack = std::move(stacks.back());
      stacks.pop_back();
      getcontext(&fiber.context.context);
      fiber.context.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.context.uc_stack.ss_size = stack_bytes;
      fiber.context.context.uc_link = nullptr;
      makecontext(&fiber.context.context, &Machine::enter, 0);
    }
  }
  ~Machine() {
    for (Fiber& fiber : fibers_) forget(fiber.context);
    if (failed_) return;  // frames were left behind on the stacks
    for (Fiber& fiber : fibers_) {
      if (fiber.stack) stacks.push_back(std::move(fiber.stack));
    }
  }
  Machine(const Machine&) = delete;  // contexts point into it
  Machine& operator=(const Machine&) = delete;

  void run() {
    failed_ = true;
    std::vector<int> order(static_cast<std::size_t>(shape_.blocks));
    for (const int block : arranged(order)) run_block(block);
    failed_ = false;
  }

  Fiber& current() { return *current_; }

  void barrier(int line) {
    Fiber& fiber = current();
    if (at_barrier_ == 0) barrier_line_ = line;
    if (barrier_line_ != line) {
      throw Fault(where(fiber) + " came to the barrier of line " + std::to_string(line) +
                  " while others wait at that of line " + std::to_string(barrier_line_));
    }
    if (++at_barrier_ == shape_.threads) {
      at_barrier_ = 0;
      for (Fiber& other : fibers_) other.state = State::ready;
      return;
    }
    park(fiber, State::at_barrier, line);
  }

  void part_barrier(int part, int threads, int line) {
    Fiber& fiber = current();
    const int number = fiber.place.thread / threads;
    if (threads % lanes != 0 || shape_.threads % threads != 0 || part != number ||
        part >= most_parts) {
      throw Fault(where(fiber) + " came to the barrier of line " + std::to_string(line) +
                  " for part " + std::to_string(part) + " of " + std::to_string(threads) +
                  " threads, which is not its own");
    }
    Part& own = parts_[static_cast<std::size_t>(part)];
    if (own.arrived == 0) own = {0, threads, line};
    if (own.line != line || own.threads != threads) {
      throw Fault(where(fiber) + " came to the barrier of line " + std::to_string(line) +
                  " while others of its part wait at that of line " + std::to_string(own.line));
    }
    if (++own.arrived < threads) return park(fiber, State::at_part, line);
    own.arrived = 0;
    for (int thread = part * threads; thread < (part + 1) * threads; ++thread) {
      fibers_[static_cast<std::size_t>(thread)].state = State::ready;
    }
  }

  const std::uint64_t* exchange(std::uint64_t value, int line) {
    Fiber& fiber = current();
    const auto number = static_cast<std::size_t>(fiber.place.thread / lanes);
    const std::size_t first = number * lanes;
    Warp& warp = warps_[number];
    if (warp.arrived == 0) warp.line = line;
    if (warp.line != line) {
      throw Fault(where(fiber) + " came to the warp operation of line " + std::to_string(line) +
                  " while its warp is in that of line " + std::to_string(warp.line));
    }
    const std::uint64_t* result = warp.values[warp.phase];
    warp.values[warp.phase][fiber.place.thread % lanes] = value;
    if (++warp.arrived < lanes) {
      park(fiber, State::in_warp, line);
      return result;
    }
    warp.arrived = 0;
    warp.phase ^= 1;
    for (std::size_t thread = first; thread < first + lanes; ++thread) {
      fibers_[thread].state = State::ready;
    }
    return result;
  }

 private:
  static void enter();

  std::vector<int>& arranged(std::vector<int>& order) {
    std::iota(order.begin(), order.end(), 0);
    if (turns_ == Turns::backward) std::reverse(order.begin(), order.end());
    if (turns_ == Turns::shuffled) {
      for (std::size_t left = order.size(); left > 1; --left) {
        std::swap(order[left - 1], order[random_() % left]);
      }
    }
    return order;
  }

  static std::string where(const Fiber& fiber) {
    return "block " + std::to_string(fiber.place.block) + ", thread " +
           std::to_string(fiber.place.thread);
  }

  void park(Fiber& fiber, State state, int line) {
    fiber.state = state;
    fiber.line = line;
    change(fiber.context, scheduler_);
  }

  void start_block(int block) {
    const auto address = reinterpret_cast<std::uintptr_t>(shared_.data());
    shared_start_ = shared_.data() + (128 - address % 128) % 128;
    std::memset(shared_start_, poison, shape_.shared_bytes + guard_bytes);
    at_barrier_ = 0;
    for (Warp& warp : warps_) warp.arrived = 0;
    for (Part& part : parts_) part.arrived = 0;
    for (std::size_t thread = 0; thread < fibers_.size(); ++thread) {
      fibers_[thread].state = State::ready;
      fibers_[thread].place = {static_cast<int>(thread), shape_.threads, block, shape_.blocks,
                               shared_start_};
    }
  }

  void run_block(int block) {
    start_block(block);
    std::vector<int> order(fibers_.size());
    bool any_left = true;
    while (any_left) {
      any_left = false;
      bool progress = false;
      for (const int thread : arranged(order)) {
        Fiber& fiber = fibers_[static_cast<std::size_t>(thread)];
        if (fiber.state == State::done) continue;
        any_left = true;
        if (fiber.state != State::ready) continue;
        progress = true;
        current_ = &fiber;
        change(scheduler_, fiber.context);
        if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
      }
      if (any_left && !progress) report_hang();
    }
    for (std::size_t at = 0; at < guard_bytes; ++at) {
      if (shared_start_[shape_.shared_bytes + at] != poison) {
        throw Fault("block " + std::to_string(block) + " wrote past its " +
                    std::to_string(shape_.shared_bytes) + " bytes of shared memory");
      }
    }
  }

  [[noreturn]] void report_hang() {
    const Fiber* waiting = nullptr;
    int done = 0;
    for (const Fiber& fiber : fibers_) {
      if (fiber.state == State::done) ++done;
      if (fiber.state != State::done && waiting == nullptr) waiting = &fiber;
    }
    const char* what = waiting->state == State::in_warp ? "the warp operation" : "the barrier";
    throw Fault(where(*waiting) + " waits for ever in " + what + " of line " +
                std::to_string(waiting->line) + ": others are elsewhere, " + std::to_string(done) +
                " threads have returned");
  }

  const LaunchShape shape_;
  const std::function<void()>& kernel_;
  const Turns turns_;
  std::mt19937 random_;
  Context scheduler_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::array<Part, most_parts> parts_;
  std::vector<unsigned char> shared_;
  unsigned char* shared_start_ = nullptr;
  Fiber* current_ = nullptr;
  int at_barrier_ = 0;
  int barrier_line_ = 0;
  std::exception_ptr failure_;
  bool failed_ = false;
};

thread_local Machine* machine = nullptr;

// A fiber runs the kernel for one block after another.
void Machine::enter() {
  Machine& self = *machine;
  while (true) {
    Fiber& fiber = self.current();
    try {
      self.kernel_();
      if (!fiber.open_copies.empty() || !fiber.groups.empty()) {
        throw Fault(where(fiber) + " returned before its asynchronous copies were waited for");
      }
    } catch (...) {
      self.failure_ = std::current_exception();
    }
    fiber.state = State::done;
    change(fiber.context, self.scheduler_);
  }
}

void finish_group(const std::vector<Copy>& group) {
  for (const Copy& copy : group) {
    if (copy.from == nullptr) {
      std::memset(copy.to, 0, 16);
    } else {
      std::memcpy(copy.to, copy.from, 16);
    }
  }
}

}  // namespace

const Place& place() { return machine->current().place; }
void block_barrier(int line) { machine->barrier(line); }
void part_barrier(int part, int threads, int line) { machine->part_barrier(part, threads, line); }
const std::uint64_t* warp_exchange(std::uint64_t value, int line) {
  return machine->exchange(value, line);
}

void copy_async(void* to, const void* from) {
  machine->current().open_copies.push_back({to, from});
}

void commit_copies() {
  Fiber& fiber = machine->current();
  fiber.groups.push_back(std::exchange(fiber.open_copies, {}));
}

void wait_for_copies(int groups_left) {
  Fiber& fiber = machine->current();
  while (static_cast<int>(fiber.groups.size()) > groups_left) {
    finish_group(fiber.groups.front());
    fiber.groups.pop_front();
  }
}

void launch(const LaunchShape& shape, const std::function<void()>& kernel, Turns turns) {
  if (machine != nullptr) throw Fault("a kernel cannot launch another");
  Machine one(shape, kernel, turns);
  machine = &one;
  struct Clear {
    ~Clear() { machine = nullptr; }
  } clear;
  one.run();
}

}  // namespace moesim::kernels::simt
