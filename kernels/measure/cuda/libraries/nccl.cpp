#include "kernels/measure/cuda/libraries/nccl.hpp"

#include <fmt/format.h>

#include "kernels/base/shared_library.hpp"
#include "kernels/measure/devices/device.hpp"
#include "sim/base/error.hpp"

#ifdef MOESIM_HAVE_NCCL
#include <nccl.h>

#include <cstring>
#endif

namespace moesim::kernels::measure::cuda {

#ifdef MOESIM_HAVE_NCCL
namespace {

// The functions in use, of the library found at run time.
struct Library {
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRank) comm_init_rank = nullptr;
  decltype(&::ncclCommDestroy) comm_destroy = nullptr;
  decltype(&::ncclCommCount) comm_count = nullptr;
  decltype(&::ncclCommUserRank) comm_user_rank = nullptr;
  decltype(&::ncclGetErrorString) error_string = nullptr;
  decltype(&::ncclGetLastError) last_error = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) recv = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&::ncclCommSplit) comm_split = nullptr;  // since 2.18
  using AllToAll = ncclResult_t (*)(const void*, void*, size_t, ncclDataType_t, ncclComm_t,
                                    cudaStream_t);
  AllToAll all_to_all = nullptr;  // since 2.28; before, grouped send and receive
  std::string trouble;            // "": usable
};

Library load() {
  Library library;
  const SharedLibrary file = open_shared_library("libnccl.so.2", "MOESIM_NCCL_LIBRARY");
  if (file.handle == nullptr) {
    library.trouble = fmt::format("NCCL is missing ({}): install libnccl2", file.trouble);
    return library;
  }
  const NeededFunctions needed(file, library.trouble, "NCCL is too old: it has no ",
                               "; install a newer libnccl2");
  needed.find(library.get_version, "ncclGetVersion");
  needed.find(library.get_unique_id, "ncclGetUniqueId");
  needed.find(library.comm_init_rank, "ncclCommInitRank");
  needed.find(library.comm_destroy, "ncclCommDestroy");
  needed.find(library.comm_count, "ncclCommCount");
  needed.find(library.comm_user_rank, "ncclCommUserRank");
  needed.find(library.error_string, "ncclGetErrorString");
  needed.find(library.last_error, "ncclGetLastError");
  needed.find(library.group_start, "ncclGroupStart");
  needed.find(library.group_end, "ncclGroupEnd");
  needed.find(library.send, "ncclSend");
  needed.find(library.recv, "ncclRecv");
  needed.find(library.all_reduce, "ncclAllReduce");
  needed.find(library.all_gather, "ncclAllGather");
  needed.find(library.reduce_scatter, "ncclReduceScatter");
  library.comm_split = find_function<decltype(library.comm_split)>(file, "ncclCommSplit");
  library.all_to_all = find_function<Library::AllToAll>(file, "ncclAlltoAll");
  return library;
}

const Library& nccl() {
  static const Library library = load();
  return library;
}

constexpr ncclDataType_t element = ncclBfloat16;
constexpr std::size_t element_bytes = 2;
std::size_t place(int index) { return static_cast<std::size_t>(index); }

}  // namespace

struct NcclCommunicator::State {
  ncclComm_t communicator = nullptr;
  int rank = 0;
  int size = 1;

  void check(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess || result == ncclInProgress) return;
    throw Error(fmt::format("rank {}: {}: {} ({}); NCCL_DEBUG=INFO says more", rank, what,
                            nccl().error_string(result), nccl().last_error(communicator)));
  }
};

NcclCommunicator::NcclCommunicator(std::unique_ptr<State> state) : state_(std::move(state)) {}

NcclCommunicator::~NcclCommunicator() {
  if (state_->communicator != nullptr) nccl().comm_destroy(state_->communicator);
}

std::unique_ptr<NcclCommunicator> NcclCommunicator::join(Group& group, std::string& trouble) {
  const std::vector<std::string> troubles = group.all_gather(nccl().trouble);
  for (std::size_t rank = 0; rank < troubles.size(); ++rank) {
    if (!troubles[rank].empty()) trouble = fmt::format("rank {}: {}", rank, troubles[rank]);
  }
  if (!trouble.empty()) return nullptr;
  ncclUniqueId id{};
  std::string text;
  if (group.rank() == 0 && nccl().get_unique_id(&id) == ncclSuccess) {
    text.assign(id.internal, sizeof id.internal);
  }
  text = group.from_root(text);
  if (text.size() != sizeof id.internal) {
    trouble = "NCCL has no network to meet on: NCCL_DEBUG=INFO on rank 0 says more";
    return nullptr;
  }
  std::memcpy(id.internal, text.data(), sizeof id.internal);
  auto state = std::make_unique<State>();
  state->rank = group.rank();
  state->size = group.size();
  const ncclResult_t joined =
      nccl().comm_init_rank(&state->communicator, group.size(), id, group.rank());
  const std::vector<std::string> answers =
      group.all_gather(joined == ncclSuccess ? "" : nccl().error_string(joined));
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (answers[rank].empty()) continue;
    trouble = fmt::format("rank {}: ncclCommInitRank: {}; NCCL_DEBUG=INFO says more", rank,
                          answers[rank]);
  }
  std::unique_ptr<NcclCommunicator> communicator(new NcclCommunicator(std::move(state)));
  return trouble.empty() ? std::move(communicator) : nullptr;
}

std::string NcclCommunicator::version() const {
  int number = 0;
  state_->check(nccl().get_version(&number), "ncclGetVersion");
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

int NcclCommunicator::rank() const { return state_->rank; }
int NcclCommunicator::size() const { return state_->size; }

std::unique_ptr<NcclCommunicator> NcclCommunicator::split(int part) {
  if (nccl().comm_split == nullptr) throw NotMeasurable("NCCL before 2.18 splits no communicators");
  auto state = std::make_unique<State>();
  state->rank = state_->rank;  // as messages name it, until the new one is known
  state_->check(
      nccl().comm_split(state_->communicator, part, state_->rank, &state->communicator, nullptr),
      "ncclCommSplit");
  state->check(nccl().comm_count(state->communicator, &state->size), "ncclCommCount");
  state->check(nccl().comm_user_rank(state->communicator, &state->rank), "ncclCommUserRank");
  return std::unique_ptr<NcclCommunicator>(new NcclCommunicator(std::move(state)));
}

void NcclCommunicator::transfer(const Transfers& transfers, std::size_t chunk_bytes,
                                const void* from, void* to, Stream stream) {
  const std::size_t elements = chunk_bytes / element_bytes;
  state_->check(nccl().group_start(), "ncclGroupStart");
  for (const Stretch& each : transfers.sends) {
    state_->check(nccl().send(static_cast<const char*>(from) + place(each.first) * chunk_bytes,
                              place(each.chunks) * elements, element, each.peer,
                              state_->communicator, stream),
                  "ncclSend");
  }
  for (const Stretch& each : transfers.receives) {
    state_->check(nccl().recv(static_cast<char*>(to) + place(each.first) * chunk_bytes,
                              place(each.chunks) * elements, element, each.peer,
                              state_->communicator, stream),
                  "ncclRecv");
  }
  state_->check(nccl().group_end(), "ncclGroupEnd");
}

void NcclCommunicator::all_to_all(const void* from, void* to, std::size_t bytes, Stream stream) {
  const auto ranks = static_cast<std::size_t>(state_->size);
  if (nccl().all_to_all != nullptr) {
    state_->check(nccl().all_to_all(from, to, bytes / ranks / element_bytes, element,
                                    state_->communicator, stream),
                  "ncclAlltoAll");
    return;
  }
  const std::vector<std::int64_t> equal(ranks, static_cast<std::int64_t>(bytes / ranks));
  all_to_all(from, equal, to, equal, stream);
}

void NcclCommunicator::all_to_all(const void* from, const std::vector<std::int64_t>& sent, void* to,
                                  const std::vector<std::int64_t>& received, Stream stream) {
  const auto* out = static_cast<const char*>(from);
  auto* in = static_cast<char*>(to);
  state_->check(nccl().group_start(), "ncclGroupStart");
  for (int peer = 0; peer < state_->size; ++peer) {
    const auto place = static_cast<std::size_t>(peer);
    state_->check(nccl().send(out, static_cast<std::size_t>(sent[place]) / element_bytes, element,
                              peer, state_->communicator, stream),
                  "ncclSend");
    state_->check(nccl().recv(in, static_cast<std::size_t>(received[place]) / element_bytes,
                              element, peer, state_->communicator, stream),
                  "ncclRecv");
    out += sent[place];
    in += received[place];
  }
  state_->check(nccl().group_end(), "ncclGroupEnd");
}

void NcclCommunicator::all_to_all(const layer::BlockExchange& blocks, Stream stream) {
  if (blocks.blocks == 1) {
    return all_to_all(blocks.from, blocks.to,
                      blocks.block_bytes * static_cast<std::size_t>(blocks.ranks), stream);
  }
  const auto* out = static_cast<const char*>(blocks.from);
  auto* in = static_cast<char*>(blocks.to);
  const std::size_t elements = blocks.block_bytes / element_bytes;
  state_->check(nccl().group_start(), "ncclGroupStart");
  for (int peer = 0; peer < blocks.ranks; ++peer) {
    // Messages between two ranks match in order: by block on both sides.
    for (int block = 0; block < blocks.blocks; ++block) {
      state_->check(nccl().send(out + blocks.sent_at(peer, block), elements, element, peer,
                                state_->communicator, stream),
                    "ncclSend");
      state_->check(nccl().recv(in + blocks.received_at(peer, block), elements, element, peer,
                                state_->communicator, stream),
                    "ncclRecv");
    }
  }
  state_->check(nccl().group_end(), "ncclGroupEnd");
}

void NcclCommunicator::all_reduce(const void* from, void* to, std::size_t bytes, Stream stream) {
  state_->check(nccl().all_reduce(from, to, bytes / element_bytes, element, ncclSum,
                                  state_->communicator, stream),
                "ncclAllReduce");
}

void NcclCommunicator::all_gather(const void* from, void* to, std::size_t bytes, Stream stream) {
  const std::size_t each = bytes / static_cast<std::size_t>(state_->size);
  state_->check(
      nccl().all_gather(from, to, each / element_bytes, element, state_->communicator, stream),
      "ncclAllGather");
}

void NcclCommunicator::reduce_scatter(const void* from, void* to, std::size_t bytes,
                                      Stream stream) {
  const std::size_t each = bytes / static_cast<std::size_t>(state_->size);
  state_->check(nccl().reduce_scatter(from, to, each / element_bytes, element, ncclSum,
                                      state_->communicator, stream),
                "ncclReduceScatter");
}

#else

struct NcclCommunicator::State {};
NcclCommunicator::NcclCommunicator(std::unique_ptr<State> state) : state_(std::move(state)) {}
NcclCommunicator::~NcclCommunicator() = default;
std::unique_ptr<NcclCommunicator> NcclCommunicator::join(Group&, std::string& trouble) {
  trouble = "this build has no NCCL: install libnccl-dev and build again";
  return nullptr;
}
std::string NcclCommunicator::version() const { return ""; }
int NcclCommunicator::rank() const { return 0; }
int NcclCommunicator::size() const { return 1; }
std::unique_ptr<NcclCommunicator> NcclCommunicator::split(int) { return nullptr; }
void NcclCommunicator::transfer(const Transfers&, std::size_t, const void*, void*, Stream) {}
void NcclCommunicator::all_to_all(const void*, void*, std::size_t, Stream) {}
void NcclCommunicator::all_to_all(const void*, const std::vector<std::int64_t>&, void*,
                                  const std::vector<std::int64_t>&, Stream) {}
void NcclCommunicator::all_to_all(const layer::BlockExchange&, Stream) {}
void NcclCommunicator::all_reduce(const void*, void*, std::size_t, Stream) {}
void NcclCommunicator::all_gather(const void*, void*, std::size_t, Stream) {}
void NcclCommunicator::reduce_scatter(const void*, void*, std::size_t, Stream) {}

#endif

}  // namespace moesim::kernels::measure::cuda
