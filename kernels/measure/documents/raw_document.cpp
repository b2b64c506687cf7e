#include "kernels/measure/documents/raw_document.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "sim/base/file.hpp"
#include "sim/base/formats/document.hpp"

namespace moesim::kernels::measure {
namespace {

constexpr const char* format_name = "moesim-raw-points";
constexpr std::int64_t format_version = 1;

}  // namespace

RawDocument::RawDocument(std::string path, const RunIdentity& identity, bool resume)
    : path_(std::move(path)) {
  const nlohmann::ordered_json head = {{"format", format_name},
                                       {"version", format_version},
                                       {"tool_version", identity.tool_version},
                                       {"device", identity.device},
                                       {"gpus", identity.gpus}};
  head_ = head.dump();
  head_.pop_back();  // the points follow inside the same object
  if (resume && std::filesystem::exists(path_)) {
    take_over(identity);
  } else {
    check_writable(path_);
  }
  if (resume && std::filesystem::exists(under_way())) fatal_key_ = read_file(under_way());
  end();
}

void RawDocument::begin(const std::string& key) { write_file_atomically(under_way(), key); }

void RawDocument::end() {
  std::error_code ignored;  // it was not there
  std::filesystem::remove(under_way(), ignored);
}

void RawDocument::take_over(const RunIdentity& identity) {
  const Document document = Document::load(path_);
  const Node root = document.root();
  if (root.text("format") != format_name || root.integer("version") != format_version) {
    root.fail("not points that moesim profile wrote: choose another --out", "format");
  }
  const auto compare = [&](const char* key, const std::string& now) {
    const std::string then =
        root.json().at(key).is_string() ? root.text(key) : std::to_string(root.integer(key));
    if (then != now) {
      root.fail(fmt::format("these points come from {}, this run is {}: leave out --resume, or "
                            "choose another --out",
                            then, now),
                key);
    }
  };
  root.text("tool_version"), root.text("device"), root.integer("gpus");
  compare("tool_version", identity.tool_version);
  compare("device", identity.device);
  compare("gpus", std::to_string(identity.gpus));
  for (const Node& item : root.items("points")) {
    remember(point_from_json(item.json(), path_ + ": " + item.path()));
  }
}

void RawDocument::remember(const Point& point) {
  const std::string key = point.key();
  const auto [place, fresh] = places_.emplace(key, points_.size());
  if (fresh) {
    points_.push_back(point);
    texts_.push_back(to_raw_json(point).dump());
  } else {
    points_[place->second] = point;
    texts_[place->second] = to_raw_json(point).dump();
  }
}

void RawDocument::add(const Point& point) {
  remember(point);
  std::string text = head_ + ",\"points\":[";
  for (std::size_t index = 0; index < texts_.size(); ++index) {
    text += (index == 0 ? "\n" : ",\n") + texts_[index];
  }
  write_file_atomically(path_, text + "\n]}\n");
}

}  // namespace moesim::kernels::measure
