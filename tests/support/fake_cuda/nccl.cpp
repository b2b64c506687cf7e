// A libnccl.so.2 whose ranks are threads of one process and whose buffers are host memory: what is
// sent arrives, what does not fit together is refused. Streams are ignored; every call is done when
// it returns. A program that exports `on_fake_nccl` is called by each rank's exchange.
#include <dlfcn.h>
#include <nccl.h>

#include <atomic>
#include <bit>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

using Bytes = std::vector<char>;

// What is under way between the ranks of one communicator.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<Bytes>> under_way;
};

struct Operation {
  ncclComm_t communicator;
  int peer;
  const char* from;  // of a send
  char* to;          // of a receive
  std::size_t bytes;
};

thread_local int depth = 0;
thread_local std::vector<Operation> queued;

std::shared_ptr<World> world_of(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<World>> worlds;
  const std::lock_guard lock(mutex);
  std::shared_ptr<World>& world = worlds[name];
  if (!world) world = std::make_shared<World>();
  return world;
}

std::size_t size_of(ncclDataType_t type) { return type == ncclBfloat16 ? 2 : 1; }

float value_of(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}
std::uint16_t bits_of(float value) {  // of values that bf16 holds
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16U);
}

}  // namespace

struct ncclComm {
  int rank;
  int size;
  std::string name;
  std::shared_ptr<World> world;
  int splits = 0;
};

namespace {

void post(const Operation& operation) {
  ncclComm& own = *operation.communicator;
  const std::lock_guard lock(own.world->mutex);
  own.world->under_way[{own.rank, operation.peer}].emplace_back(operation.from,
                                                                operation.from + operation.bytes);
  own.world->changed.notify_all();
}

ncclResult_t collect(const Operation& operation) {
  ncclComm& own = *operation.communicator;
  std::unique_lock lock(own.world->mutex);
  std::deque<Bytes>& queue = own.world->under_way[{operation.peer, own.rank}];
  own.world->changed.wait(lock, [&queue] { return !queue.empty(); });
  const Bytes content = std::move(queue.front());
  queue.pop_front();
  if (content.size() != operation.bytes) return ncclInvalidArgument;
  std::memcpy(operation.to, content.data(), content.size());
  return ncclSuccess;
}

void tell() {
  static const auto told = reinterpret_cast<void (*)()>(::dlsym(RTLD_DEFAULT, "on_fake_nccl"));
  if (told != nullptr) told();
}

// The same number of bytes of every rank, by rank.
std::vector<Bytes> gathered(ncclComm_t own, const void* from, std::size_t bytes) {
  tell();
  std::vector<Bytes> all(static_cast<std::size_t>(own->size), Bytes(bytes));
  for (int peer = 0; peer < own->size; ++peer) {
    post({own, peer, static_cast<const char*>(from), nullptr, bytes});
  }
  for (int peer = 0; peer < own->size; ++peer) {
    collect({own, peer, nullptr, all[static_cast<std::size_t>(peer)].data(), bytes});
  }
  return all;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = 21800;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> count{0};
  std::memset(id, 0, sizeof *id);
  std::string text = "world " + std::to_string(count++);
  std::memcpy(id->internal, text.data(), text.size());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  const std::string name = id.internal;
  *comm = new ncclComm{rank, size, name, world_of(name)};
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* size) {
  *size = comm->size;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "the fake refuses"; }
const char* ncclGetLastError(ncclComm_t) { return "sizes differ"; }

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* out, ncclConfig_t*) {
  const int own[2] = {color, key};
  std::vector<std::pair<int, int>> members;  // key, rank
  for (const Bytes& each : gathered(comm, own, sizeof own)) {
    int theirs[2];
    std::memcpy(theirs, each.data(), sizeof theirs);
    if (theirs[0] == color) members.emplace_back(theirs[1], static_cast<int>(members.size()));
  }
  int rank = 0;
  for (const auto& [other, order] : members) rank += other < key ? 1 : 0;
  const std::string name =
      comm->name + "/" + std::to_string(comm->splits++) + "." + std::to_string(color);
  *out = new ncclComm{rank, static_cast<int>(members.size()), name, world_of(name)};
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--depth > 0) return ncclSuccess;
  const std::vector<Operation> operations = std::exchange(queued, {});
  tell();
  for (const Operation& each : operations) {
    if (each.from != nullptr) post(each);
  }
  ncclResult_t result = ncclSuccess;
  for (const Operation& each : operations) {
    if (each.to == nullptr) continue;
    const ncclResult_t mine = collect(each);
    if (mine != ncclSuccess) result = mine;
  }
  return result;
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t) {
  ncclGroupStart();
  queued.push_back({comm, peer, static_cast<const char*>(from), nullptr, count * size_of(type)});
  return ncclGroupEnd();
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t) {
  ncclGroupStart();
  queued.push_back({comm, peer, nullptr, static_cast<char*>(to), count * size_of(type)});
  return ncclGroupEnd();
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t) {
  char* out = static_cast<char*>(to);
  for (const Bytes& each : gathered(comm, from, count * size_of(type))) {
    std::memcpy(out, each.data(), each.size());
    out += each.size();
  }
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t comm, cudaStream_t) {
  if (type != ncclBfloat16 || operation != ncclSum) return ncclInvalidArgument;
  std::vector<float> sums(count);
  for (const Bytes& each : gathered(comm, from, 2 * count)) {
    for (std::size_t at = 0; at < count; ++at) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, each.data() + 2 * at, 2);
      sums[at] += value_of(bits);
    }
  }
  for (std::size_t at = 0; at < count; ++at) {
    const std::uint16_t bits = bits_of(sums[at]);
    std::memcpy(static_cast<char*>(to) + 2 * at, &bits, 2);
  }
  return ncclSuccess;
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  const auto ranks = static_cast<std::size_t>(comm->size);
  std::vector<std::uint16_t> all(count * ranks);
  const ncclResult_t result =
      ncclAllReduce(from, all.data(), count * ranks, type, operation, comm, stream);
  if (result != ncclSuccess) return result;
  std::memcpy(to, all.data() + count * static_cast<std::size_t>(comm->rank), 2 * count);
  return ncclSuccess;
}
}
