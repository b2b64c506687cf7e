#include "sim/report/chrome_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "sim/base/enum_names.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/step/program/step_program.hpp"

namespace moesim::report {
namespace {

// A time in microseconds, to the nearest nanosecond. Readers take whole nanoseconds, and round each
// time by itself: with more digits a bar may end after the next one starts, and Perfetto drops
// that.
std::string microseconds(std::int64_t nanoseconds) {
  return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

std::int64_t nanoseconds(Picoseconds time) { return (time.count + 500) / 1000; }

std::string duration_of(const engine::TimelineEvent& event) {
  return microseconds(nanoseconds(event.start + event.duration) - nanoseconds(event.start));
}

// The host's process, which no GPU's number may be.
constexpr int host_process = 1 << 24;

// The stream numbers that PyTorch traces show: 7 is the default compute stream, and collectives
// run on a stream of their own. Those of a training step beside them.
constexpr EnumNames<int, 6> stream_numbers{{{1, "pipeline"},
                                            {2, "host"},
                                            {7, "compute"},
                                            {21, "p2p"},
                                            {22, "blocking exchange"},
                                            {24, "gradients"}}};
constexpr int other_stream = 20;

int stream_number(const std::string& stream) {
  return find_in(stream_numbers, stream).value_or(other_stream);
}

std::string quoted(const std::string& text) { return json_text(nlohmann::json(text)); }

// What NCCL calls the kernel of a collective; its names end in an algorithm and a protocol, of
// which RING_LL stands for all, of large sizes too (NCCL 2.19 and later: src/device/generate.py,
// best_kernel). Those that add name the type, in the place of {}.
struct KernelName {
  const char* operation;
  const char* kernel;
};
constexpr KernelName nccl_kernels[] = {
    {"all_to_all", "ncclDevKernel_SendRecv"},
    {"send_recv", "ncclDevKernel_SendRecv"},
    {"recv", "ncclDevKernel_SendRecv"},
    {"all_reduce", "ncclDevKernel_AllReduce_Sum_{}_RING_LL"},
    {"all_gather", "ncclDevKernel_AllGather_RING_LL"},
    {"reduce_scatter", "ncclDevKernel_ReduceScatter_Sum_{}_RING_LL"}};

// NCCL's name of a type that PyTorch names.
const char* nccl_type(const std::string& element) { return element == "Float" ? "f32" : "bf16"; }

// The collective of a bar named "nccl:all_to_all"; empty: none.
std::string collective_of(const engine::TimelineEvent& event) {
  constexpr std::string_view prefix = "nccl:";
  return event.name.starts_with(prefix) ? event.name.substr(prefix.size()) : "";
}

std::string name_of(const engine::TimelineEvent& event) {
  const std::string collective = collective_of(event);
  for (const KernelName& known : nccl_kernels) {
    if (collective == known.operation) {
      return fmt::format(fmt::runtime(known.kernel), nccl_type(event.element));
    }
  }
  return collective.empty() ? event.name : "ncclDevKernel_" + collective;
}

// What a rank gets for each element that it sends; 0: not known, as of rows that differ.
double received_share(const std::string& collective, int ranks) {
  if (collective == "all_gather") return ranks;
  if (collective == "reduce_scatter") return 1.0 / ranks;
  return collective == "all_reduce" ? 1 : 0;
}

// The arguments of Kineto's collectives (torch/csrc/distributed/c10d/ParamCommsUtils.hpp).
void add_collective(const engine::TimelineEvent& event, std::string& text) {
  const std::string collective = collective_of(event);
  if (collective.empty()) return;
  fmt::format_to(std::back_inserter(text), ", \"Collective name\": {}", quoted(collective));
  if (event.bytes > 0) {
    const double elements = event.bytes / event.element_bytes;
    const double share = event.group_size > 0 ? received_share(collective, event.group_size) : 0;
    fmt::format_to(std::back_inserter(text), ", \"In msg nelems\": {:.0f}", elements);
    if (share > 0) {
      fmt::format_to(std::back_inserter(text), ", \"Out msg nelems\": {:.0f}", share * elements);
    }
    fmt::format_to(std::back_inserter(text), ", \"dtype\": {}, \"bytes\": {:.0f}",
                   quoted(event.element), event.bytes);
  }
  if (!event.group_name.empty()) {
    fmt::format_to(std::back_inserter(text),
                   ", \"Process Group Name\": {0}, \"Process Group Description\": {0}",
                   quoted(event.group_name));
  }
  if (event.group_size == 0) return;
  std::string name = name_in(step::group_names, static_cast<step::Groups>(event.partition));
  if (name.empty()) name = "group";
  fmt::format_to(std::back_inserter(text),
                 ", \"Group size\": {}, \"Process Group Name\": \"{}:{}\", \"Process Group "
                 "Description\": \"{}\"",
                 event.group_size, name, event.group, name);
}

void add_metadata(const engine::Timeline& timeline, std::string& text) {
  std::map<int, std::map<int, std::string>> streams;
  for (const engine::TimelineEvent& event : timeline) {
    streams[event.rank].emplace(stream_number(event.stream), event.stream);
  }
  for (const auto& [rank, names] : streams) {
    fmt::format_to(
        std::back_inserter(text),
        "{{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": {0}, \"tid\": 0, \"args\": "
        "{{\"name\": \"GPU {0}\"}}}},\n",
        rank);
    for (const auto& [number, name] : names) {
      fmt::format_to(std::back_inserter(text),
                     "{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {}, \"tid\": {}, "
                     "\"args\": {{\"name\": {}}}}},\n",
                     rank, number, quoted(fmt::format("stream {} {}", number, name)));
    }
  }
}

// As Kineto writes a range of the GPU: without device and stream, by which readers know kernels.
void add_range(const engine::TimelineEvent& event, std::string& text) {
  fmt::format_to(std::back_inserter(text),
                 "{{\"ph\": \"X\", \"cat\": \"gpu_user_annotation\", \"name\": {}, \"pid\": {}, "
                 "\"tid\": {}, \"ts\": {}, \"dur\": {}, \"args\": {{}}}},\n",
                 quoted(event.name), event.rank, stream_number(event.stream),
                 microseconds(nanoseconds(event.start)), duration_of(event));
}

void add_event(const engine::TimelineEvent& event, std::string& text) {
  if (event.is_range) {
    add_range(event, text);
    return;
  }
  const int stream = stream_number(event.stream);
  fmt::format_to(
      std::back_inserter(text),
      "{{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": {}, \"pid\": {}, \"tid\": {}, "
      "\"ts\": {}, \"dur\": {}, \"args\": {{\"device\": {}, \"stream\": {}, \"part\": {}",
      quoted(name_of(event)), event.rank, stream, microseconds(nanoseconds(event.start)),
      duration_of(event), event.rank, stream, quoted(event.category));
  if (event.layer >= 0) {
    fmt::format_to(std::back_inserter(text), ", \"layer\": {}", event.layer);
  }
  if (event.chunk >= 0) {
    fmt::format_to(std::back_inserter(text), ", \"chunk\": {}", event.chunk);
  }
  if (!event.detail.empty()) {
    fmt::format_to(std::back_inserter(text), ", \"detail\": {}", quoted(event.detail));
  }
  add_collective(event, text);
  text += "}},\n";
}

std::string closed(std::string text) {
  if (text.ends_with(",\n")) text.erase(text.size() - 2);
  return text + "\n]}\n";
}

}  // namespace

std::string chrome_trace(const engine::Timeline& timeline, const std::string& title) {
  std::string text = fmt::format(
      "{{\"schemaVersion\": 1, \"displayTimeUnit\": \"ms\", \"traceName\": {}, "
      "\"traceEvents\": [\n",
      quoted(title));
  add_metadata(timeline, text);
  for (const engine::TimelineEvent& event : timeline) add_event(event, text);
  return closed(std::move(text));
}

std::string rank_trace(const engine::Timeline& timeline, const std::string& title, int rank,
                       int world_size) {
  std::string text = fmt::format(
      "{{\"schemaVersion\": 1, \"displayTimeUnit\": \"ms\", \"traceName\": {}, "
      "\"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": {}, \"world_size\": {}}}, "
      "\"traceEvents\": [\n",
      quoted(title), rank, world_size);
  engine::Timeline own;
  Picoseconds end;
  for (const engine::TimelineEvent& event : timeline) {
    if (event.rank != rank) continue;
    own.push_back(event);
    end = std::max(end, event.start + event.duration);
  }
  add_metadata(own, text);
  fmt::format_to(std::back_inserter(text),
                 "{{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": {0}, \"tid\": {0}, "
                 "\"args\": {{\"name\": \"host\"}}}},\n"
                 "{{\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"ProfilerStep#0\", "
                 "\"pid\": {0}, \"tid\": {0}, \"ts\": 0.000, \"dur\": {1}, \"args\": {{}}}},\n",
                 host_process, microseconds(nanoseconds(end)));
  for (const engine::TimelineEvent& event : own) add_event(event, text);
  return closed(std::move(text));
}

}  // namespace moesim::report
