// NCCL and CUPTI as they answer on broken machines, and NCCL's calls on ranks that are threads:
// stand-ins for both libraries, in processes of their own since a library is loaded once.
#include <cupti.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>

#include "kernels/base/shared_library.hpp"
#include "kernels/measure/cuda/libraries/cupti_tracer.hpp"
#include "kernels/measure/cuda/libraries/nccl.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "tests/kernels/measure/cuda/in_process.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;
namespace cuda = moesim::kernels::measure::cuda;
using cuda::NcclCommunicator;

namespace {

std::string tracing_trouble() {
  std::string trouble;
  const bool works = cuda::CuptiTracer::get(trouble) != nullptr;
  return works ? "works" : trouble;
}

std::string with_fake_cupti(const std::string& mode) {
  return in_process("MOESIM_CUPTI_LIBRARY", MOESIM_FAKE_CUPTI, [&mode] {
    ::setenv("FAKE_CUPTI", mode.c_str(), 1);
    return tracing_trouble();
  });
}

// What `body` says on each of `ranks` threads that have joined one communicator.
std::string among_ranks(
    int ranks, const std::function<std::string(NcclCommunicator&, measure::Group&)>& body) {
  measure::ThreadGroups groups(ranks);
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::string& mine = said[static_cast<std::size_t>(rank)];
      try {
        const auto nccl = NcclCommunicator::join(groups.member(rank), mine);
        if (nccl) mine = body(*nccl, groups.member(rank));
      } catch (const std::exception& error) {
        mine = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string all;
  for (const std::string& each : said) all += each.empty() ? "" : each + "; ";
  return all;
}

std::string with_fake_nccl(
    int ranks, const std::function<std::string(NcclCommunicator&, measure::Group&)>& body) {
  return in_process("MOESIM_NCCL_LIBRARY", MOESIM_FAKE_NCCL,
                    [&] { return among_ranks(ranks, body); });
}

// The chunk from rank `from` to rank `to`: words of bf16 size that name both.
std::uint16_t word(int from, int to) { return static_cast<std::uint16_t>(100 * from + to); }
constexpr std::size_t chunk_words = 8;

std::vector<std::uint16_t> input_of(int rank, int ranks) {
  std::vector<std::uint16_t> words;
  for (int to = 0; to < ranks; ++to) words.insert(words.end(), chunk_words, word(rank, to));
  return words;
}
std::vector<std::uint16_t> output_of(int rank, int ranks) {
  std::vector<std::uint16_t> words;
  for (int from = 0; from < ranks; ++from) words.insert(words.end(), chunk_words, word(from, rank));
  return words;
}

}  // namespace

TEST_CASE("CUPTI that refuses is told apart, and nothing it switched on stays on") {
  CHECK_THAT(with_fake_cupti("privileges"), ContainsSubstring("INSUFFICIENT_PRIVILEGES") &&
                                                ContainsSubstring("NVreg_RestrictProfiling"));
  CHECK_THAT(with_fake_cupti("subscriber"), ContainsSubstring("another tool (a profiler"));
  CHECK_THAT(with_fake_cupti("version"), ContainsSubstring("interface version"));
  CHECK(with_fake_cupti("") == "works");
  CHECK_THAT(in_process("MOESIM_CUPTI_LIBRARY", "/no/such/libcupti.so", tracing_trouble),
             ContainsSubstring("CUPTI is missing") && ContainsSubstring("MOESIM_CUPTI_LIBRARY"));

  const std::string log =
      (std::filesystem::temp_directory_path() / ("moesim-cupti-" + std::to_string(::getpid())))
          .string();
  ::setenv("FAKE_CUPTI_LOG", log.c_str(), 1);
  with_fake_cupti("privileges");
  ::unsetenv("FAKE_CUPTI_LOG");
  // 10 CONCURRENT_KERNEL and 1 MEMCPY went on before MEMSET was refused.
  const std::string lines = moesim::read_file(log);
  std::filesystem::remove(log);
  CHECK_THAT(lines, ContainsSubstring("on 10\n") && ContainsSubstring("on 1\n") &&
                        ContainsSubstring("off 10\n") && ContainsSubstring("off 1\n"));
  CHECK(lines.rfind("on ") < lines.find("off "));
}

TEST_CASE("a CUPTI of the same major version is taken, and its own version told") {
  CHECK(in_process("MOESIM_CUPTI_LIBRARY", MOESIM_FAKE_NEWER_CUPTI, [] {
          return cuda::CuptiTracer::version() + " " + tracing_trouble();
        }) == std::to_string(CUPTI_API_VERSION + 2) + " works");
}

TEST_CASE("asking whether there is a CUPTI attaches nothing to this process") {
  const std::string log =
      (std::filesystem::temp_directory_path() / ("moesim-attach-" + std::to_string(::getpid())))
          .string();
  ::setenv("FAKE_CUPTI_LOG", log.c_str(), 1);
  const auto asked = [](const std::string& mode) {
    return in_process("MOESIM_CUPTI_LIBRARY", MOESIM_FAKE_CUPTI, [&mode] {
      ::setenv("FAKE_CUPTI", mode.c_str(), 1);
      return cuda::CuptiTracer::version() + "; " + cuda::CuptiTracer::missing();
    });
  };
  CHECK(asked("") == std::to_string(CUPTI_API_VERSION) + "; ");
  // That another tool is attached shows only when tracing begins.
  CHECK(asked("subscriber") == std::to_string(CUPTI_API_VERSION) + "; ");
  CHECK_THAT(asked("version"), ContainsSubstring("; CUPTI has interface version"));
  ::unsetenv("FAKE_CUPTI_LOG");
  CHECK_FALSE(std::filesystem::exists(log));
}

TEST_CASE("kernels that are launched through the driver are tied to their range too") {
  const std::string log =
      (std::filesystem::temp_directory_path() / ("moesim-kinds-" + std::to_string(::getpid())))
          .string();
  ::setenv("FAKE_CUPTI_LOG", log.c_str(), 1);
  CHECK(with_fake_cupti("") == "works");
  ::unsetenv("FAKE_CUPTI_LOG");
  const std::string lines = moesim::read_file(log);
  std::filesystem::remove(log);
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER,
                                        CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION}) {
    CHECK_THAT(lines, ContainsSubstring("on " + std::to_string(kind) + "\n") &&
                          ContainsSubstring("off " + std::to_string(kind) + "\n"));
  }
}

TEST_CASE("of several libraries the newest is opened, wherever it stands") {
  const std::string older = MOESIM_FAKE_CUPTI, newer = MOESIM_FAKE_NEWER_CUPTI;
  const auto version = [](const moesim::kernels::SharedLibrary& library) {
    std::uint32_t number = 0;
    moesim::kernels::find_function<decltype(&::cuptiGetVersion)>(library,
                                                                 "cuptiGetVersion")(&number);
    return static_cast<long>(number);
  };
  for (const auto& files : {std::vector{older, newer}, std::vector{newer, older},
                            std::vector{"/no/such.so" + older, newer}}) {
    const auto opened = moesim::kernels::open_newest_library(files, version);
    REQUIRE(opened.handle != nullptr);
    CHECK(opened.trouble.empty());
    CHECK(version(opened) == CUPTI_API_VERSION + 2);
    // What was called is not closed: pointers into it may be left.
    for (const std::string& file : files) {
      if (file.starts_with("/no/such")) continue;
      void* still = ::dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD);
      REQUIRE(still != nullptr);
      ::dlclose(still);
    }
  }
  const auto none = moesim::kernels::open_newest_library({"/no/such.so", "/nor/this.so"}, version);
  CHECK(none.handle == nullptr);
  CHECK_THAT(none.trouble, ContainsSubstring("/no/such.so") && ContainsSubstring("/nor/this.so"));
}

TEST_CASE("a machine without NCCL says so on every rank, and whose it is") {
  CHECK_THAT(in_process("MOESIM_NCCL_LIBRARY", "/no/such/libnccl.so",
                        [] {
                          return among_ranks(2, [](NcclCommunicator&, measure::Group&) {
                            return std::string("joined");
                          });
                        }),
             ContainsSubstring("NCCL is missing") && ContainsSubstring("/no/such/libnccl.so") &&
                 ContainsSubstring("rank 1:") && !ContainsSubstring("joined"));
}

TEST_CASE("all-to-alls send each rank its own, equal and uneven") {
  const std::string wrong = with_fake_nccl(4, [](NcclCommunicator& nccl, measure::Group&) {
    const int own = nccl.rank();
    std::vector<std::uint16_t> in = input_of(own, 4), out(in.size());
    nccl.all_to_all(in.data(), out.data(), 2 * in.size(), nullptr);
    if (out != output_of(own, 4)) return std::string("equal chunks went astray");
    // Rank r sends 2 (1 + r + p) bytes to rank p.
    std::vector<std::int64_t> sent, received;
    std::vector<std::uint16_t> mixed, wanted;
    for (int peer = 0; peer < 4; ++peer) {
      const auto words = static_cast<std::size_t>(1 + own + peer);
      sent.push_back(static_cast<std::int64_t>(2 * words));
      received.push_back(static_cast<std::int64_t>(2 * words));
      mixed.insert(mixed.end(), words, word(own, peer));
      wanted.insert(wanted.end(), words, word(peer, own));
    }
    std::vector<std::uint16_t> got(wanted.size());
    nccl.all_to_all(mixed.data(), sent, got.data(), received, nullptr);
    return std::string(got == wanted ? "" : "uneven chunks went astray");
  });
  CHECK(wrong == "");
}

TEST_CASE("reductions and gathers hand NCCL the counts it expects") {
  const std::string wrong = with_fake_nccl(4, [](NcclCommunicator& nccl, measure::Group&) {
    const auto own = static_cast<std::size_t>(nccl.rank());
    // 1.0 in bf16 everywhere: sums of 4 ranks are 4.0 (0x4080).
    const std::vector<std::uint16_t> ones(16, 0x3f80);
    std::vector<std::uint16_t> sums(16, 0xffff);
    nccl.all_reduce(ones.data(), sums.data(), 32, nullptr);
    if (sums != std::vector<std::uint16_t>(16, 0x4080)) return std::string("all-reduce");
    // 32 bytes are the whole buffer: each rank keeps 8 of them.
    std::vector<std::uint16_t> part(5, 0xffff);
    nccl.reduce_scatter(ones.data(), part.data(), 32, nullptr);
    if (part != std::vector<std::uint16_t>{0x4080, 0x4080, 0x4080, 0x4080, 0xffff}) {
      return std::string("reduce-scatter");
    }
    const std::vector<std::uint16_t> mine(4, static_cast<std::uint16_t>(own));
    std::vector<std::uint16_t> all(16);
    nccl.all_gather(mine.data(), all.data(), 32, nullptr);
    for (std::size_t at = 0; at < all.size(); ++at) {
      if (all[at] != at / 4) return std::string("all-gather");
    }
    return std::string();
  });
  CHECK(wrong == "");
}

TEST_CASE("a hierarchical all-to-all ends as the flat one does") {
  const std::string wrong = with_fake_nccl(6, [](NcclCommunicator& nccl, measure::Group&) {
    constexpr int gpus = 3;  // on each of 2 nodes
    const int own = nccl.rank();
    const auto inside = nccl.split(own / gpus), across = nccl.split(own % gpus);
    if (inside->size() != gpus || inside->rank() != own % gpus || across->size() != 2 ||
        across->rank() != own / gpus) {
      return std::string("the tiers have other ranks");
    }
    const measure::HierarchicalPlan plan = measure::hierarchical_plan(across->size(), gpus);
    const std::vector<std::uint16_t> in = input_of(own, 6);
    std::vector<std::uint16_t> staging(in.size()), out(in.size());
    inside->transfer(plan.inside, 2 * chunk_words, in.data(), staging.data(), nullptr);
    across->transfer(plan.across, 2 * chunk_words, staging.data(), out.data(), nullptr);
    return std::string(out == output_of(own, 6) ? "" : "chunks went astray");
  });
  CHECK(wrong == "");
}

TEST_CASE("a call that NCCL refuses names the rank and the call") {
  const std::string said = with_fake_nccl(2, [](NcclCommunicator& nccl, measure::Group&) {
    const std::vector<std::uint16_t> in(8);
    std::vector<std::uint16_t> out(8);
    // Rank 1 believes that it gets less than rank 0 sends.
    const bool first = nccl.rank() == 0;
    nccl.all_to_all(in.data(), {4, first ? 8 : 4}, out.data(), {4, 4}, nullptr);
    return std::string();
  });
  CHECK_THAT(said, ContainsSubstring("rank 1: ncclGroupEnd"));
}
