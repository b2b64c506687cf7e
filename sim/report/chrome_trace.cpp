#include "sim/report/chrome_trace.hpp"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "sim/base/json_text.hpp"

namespace moesim::report {
namespace {

// Integer picoseconds as microseconds, exactly.
std::string microseconds(Picoseconds time) {
  return fmt::format("{}.{:06}", time.count / 1'000'000, time.count % 1'000'000);
}

// The stream numbers that PyTorch traces show: 7 is the default compute stream, and collectives
// run on a stream of their own. Those of a training step beside them.
int stream_number(const std::string& stream) {
  if (stream == "compute") return 7;
  if (stream == "pipeline") return 1;
  if (stream == "host") return 2;
  return stream == "gradients" ? 24 : 20;
}

std::string quoted(const std::string& text) { return json_text(nlohmann::json(text)); }

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

void add_event(const engine::TimelineEvent& event, std::string& text) {
  const int stream = stream_number(event.stream);
  fmt::format_to(
      std::back_inserter(text),
      "{{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": {}, \"pid\": {}, \"tid\": {}, "
      "\"ts\": {}, \"dur\": {}, \"args\": {{\"device\": {}, \"stream\": {}, \"part\": {}",
      quoted(event.name), event.rank, stream, microseconds(event.start),
      microseconds(event.duration), event.rank, stream, quoted(event.category));
  if (event.layer >= 0) {
    fmt::format_to(std::back_inserter(text), ", \"layer\": {}", event.layer);
  }
  text += "}},\n";
}

}  // namespace

std::string chrome_trace(const engine::Timeline& timeline, const std::string& title) {
  std::string text = fmt::format(
      "{{\"schemaVersion\": 1, \"displayTimeUnit\": \"ms\", \"traceName\": {}, "
      "\"traceEvents\": [\n",
      quoted(title));
  add_metadata(timeline, text);
  for (const engine::TimelineEvent& event : timeline) add_event(event, text);
  if (text.ends_with(",\n")) text.erase(text.size() - 2);
  return text + "\n]}\n";
}

}  // namespace moesim::report
