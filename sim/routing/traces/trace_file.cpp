#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/base/formats/npy.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/routing/traces/trace.hpp"

namespace moesim::routing {

namespace fs = std::filesystem;

namespace {

std::string digest_text(const Trace& trace) { return fmt::format("{:016x}", trace.array_digest()); }

}  // namespace

// Converts a document and its arrays to a trace.
class TraceReader {
 public:
  explicit TraceReader(const std::string& path) : document_(Document::load(path)) {
    document_.validate("trace.schema");
    folder_ = fs::path(path).parent_path();
  }

  std::shared_ptr<const Trace> read() {
    auto trace = std::make_shared<Trace>();
    trace->file_ = document_.name();
    const Node root = document_.root();
    read_kind(root, *trace);
    read_sizes(root, *trace);
    trace->array_file_ = file(root.text("array"));
    const NpyArray& array = array_;
    if (trace->kind_ == Trace::Kind::logits) {
      trace->logits_ = array.float16_or_32();
    } else if (trace->kind_ == Trace::Kind::choices) {
      trace->choices_ = expert_numbers(array, *trace);
      if (root.has("probabilities")) {
        trace->probability_file_ = file(root.text("probabilities"));
        trace->probabilities_ = probabilities(trace->probability_file_);
      }
    } else {
      trace->counts_ = array.integers();
    }
    trace->seal();
    check_digest(root, *trace);
    return trace;
  }

 private:
  // The axes that an array of a kind must have.
  static std::vector<std::string> last_axes(const std::string& kind) {
    if (kind == "logits") return {"token", "expert"};
    if (kind == "choices") return {"token", "choice"};
    return {"expert"};
  }

  std::string file(const std::string& name) const { return (folder_ / name).string(); }

  // Older documents, and those of others, have none.
  void check_digest(const Node& root, const Trace& trace) const {
    if (!root.has("digest") || root.text("digest") == digest_text(trace)) return;
    root.fail(
        fmt::format("{} is not what this document was written with: import the trace again, "
                    "or take this key out if you changed the array yourself",
                    trace.has_probabilities() ? trace.array_file_ + " or " + trace.probability_file_
                                              : trace.array_file_),
        "digest");
  }

  void read_kind(const Node& root, Trace& trace) {
    const std::string kind = root.text("kind");
    trace.kind_ = kind == "logits"    ? Trace::Kind::logits
                  : kind == "choices" ? Trace::Kind::choices
                                      : Trace::Kind::counts;
    if (trace.kind_ != Trace::Kind::choices && root.has("probabilities")) {
      root.fail(fmt::format("a trace of {} has none; those of logits are their softmax", kind),
                "probabilities");
    }
    if (trace.kind_ != Trace::Kind::counts && root.has("per")) {
      root.fail("only counts are per expert or per rank", "per");
    }
    if (root.text_or("per", "expert") == "rank") trace.per_ = Trace::Per::rank;
    const std::vector<std::string> last = last_axes(kind);
    std::vector<std::string> all{"step", "rank", "layer"};
    all.insert(all.end(), last.begin(), last.end());
    axes_ = root.texts("axes");
    std::vector<std::string> expected;
    for (const std::string& axis : all) {
      const bool needed = std::find(last.begin(), last.end(), axis) != last.end();
      if (needed || std::find(axes_.begin(), axes_.end(), axis) != axes_.end()) {
        expected.push_back(axis);
      }
    }
    if (axes_ != expected) {
      root.fail(fmt::format("[{}] instead of [{}]: {} have the axes [{}], of which step, rank and "
                            "layer may be left out",
                            fmt::join(axes_, ", "), fmt::join(expected, ", "), kind,
                            fmt::join(all, ", ")),
                "axes");
    }
  }

  void read_sizes(const Node& root, Trace& trace) {
    TraceShape& shape = trace.shape_;
    shape.tokens = root.positive_integer("tokens");
    shape.experts = root.count("experts");
    shape.top_k = root.count("top_k");
    if (shape.top_k > shape.experts) {
      root.fail(fmt::format("{} experts per token of {}", shape.top_k, shape.experts), "top_k");
    }
    // The numbers of steps, ranks and layers are the lengths of the array's axes.
    const std::string name = file(root.text("array"));
    array_ = NpyArray::load_regular(name);
    if (array_.shape.size() != axes_.size()) {
      throw BrokenDocument(fmt::format("{}: shape {} instead of [{}], the axes of {}", name,
                                       array_.shape_text(), fmt::join(axes_, ", "),
                                       document_.name()));
    }
    for (std::size_t at = 0; at < axes_.size(); ++at) take_axis(root, at, shape);
    for (const char* list : {"steps", "layers"}) {
      if (!root.has(list)) continue;
      const int length = std::string_view(list) == "steps" ? shape.steps : shape.layers;
      const std::size_t listed = root.items(list).size();
      if (listed == static_cast<std::size_t>(length)) continue;
      root.fail(fmt::format("{} numbers, but {} holds {}", listed, name, length), list);
    }
  }

  void take_axis(const Node& root, std::size_t at, TraceShape& shape) {
    const std::int64_t length = array_.shape[at];
    const std::string& axis = axes_[at];
    const bool its_own = axis == "step" || axis == "rank" || axis == "layer";
    if (its_own) {
      constexpr std::int64_t most = 1 << 24;
      if (length < 1 || length > most) {
        throw BrokenDocument(fmt::format("{}: shape {}: axis {} has to be from 1 to {}",
                                         array_.name, array_.shape_text(), axis, most));
      }
      (axis == "step"   ? shape.steps
       : axis == "rank" ? shape.ranks
                        : shape.layers) = static_cast<int>(length);
      return;
    }
    const char* key = axis == "token" ? "tokens" : axis == "choice" ? "top_k" : "experts";
    const std::int64_t stated = root.integer(key);
    if (length == stated) return;
    throw BrokenDocument(fmt::format("{}: shape {}: axis {} is {}, but {} says {} {}", array_.name,
                                     array_.shape_text(), axis, length, document_.name(), key,
                                     stated));
  }

  std::vector<float> probabilities(const std::string& name) const {
    const NpyArray array = NpyArray::load_regular(name);
    if (array.shape != array_.shape) {
      throw BrokenDocument(fmt::format("{}: shape {} instead of {}, that of the choices", name,
                                       array.shape_text(), array_.shape_text()));
    }
    return array.float16_or_32();
  }

  std::vector<std::uint16_t> expert_numbers(const NpyArray& array, const Trace& trace) const {
    const std::vector<std::int64_t> numbers = array.integers();
    const auto held = static_cast<std::size_t>(trace.shape_.top_k);
    const std::size_t each = static_cast<std::size_t>(trace.shape_.tokens) * held;
    std::vector<std::uint16_t> experts(numbers.size());
    for (std::size_t index = 0; index < numbers.size(); ++index) {
      if (numbers[index] < 0 || numbers[index] >= trace.shape_.experts) {
        throw BrokenDocument(
            fmt::format("{}: {}, token {}, choice {}: no expert {}: they are 0 to {}", array.name,
                        trace.place(index, each), index % each / held, index % held, numbers[index],
                        trace.shape_.experts - 1));
      }
      experts[index] = static_cast<std::uint16_t>(numbers[index]);
    }
    return experts;
  }

  Document document_;
  fs::path folder_;
  std::vector<std::string> axes_;
  NpyArray array_;
};

std::shared_ptr<const Trace> Trace::load(const std::string& path) {
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  return TraceReader(folder ? (fs::path(path) / "trace.json").string() : path).read();
}

namespace {

// The values of all steps, ranks and layers in that order; `part` gives those of one.
template <typename Value, typename Part>
std::vector<Value> all_values(const TraceShape& shape, Part part) {
  std::vector<Value> values;
  for (int step = 0; step < shape.steps; ++step) {
    for (int rank = 0; rank < shape.ranks; ++rank) {
      for (int layer = 0; layer < shape.layers; ++layer) {
        const auto one = part(step, rank, layer);
        values.insert(values.end(), one.begin(), one.end());
      }
    }
  }
  return values;
}

const char* name_of(Trace::Kind kind) {
  return kind == Trace::Kind::logits    ? "logits"
         : kind == Trace::Kind::choices ? "choices"
                                        : "counts";
}

// The arrays of a trace are FOLDER/logits.npy and the like, with this behind their stem.
constexpr const char* plain = "";
constexpr const char* beside = ".new";

std::string array_name(const char* stem, const char* suffix) {
  return fmt::format("{}{}.npy", stem, suffix);
}

void write_arrays(const fs::path& folder, const Trace& trace, const char* suffix) {
  const TraceShape& shape = trace.shape();
  std::vector<std::int64_t> sizes{shape.steps, shape.ranks, shape.layers};
  if (trace.kind() != Trace::Kind::counts) sizes.push_back(shape.tokens);
  sizes.push_back(trace.kind() == Trace::Kind::choices ? shape.top_k : shape.experts);
  const std::string path = (folder / array_name(name_of(trace.kind()), suffix)).string();
  if (trace.kind() == Trace::Kind::logits) {
    write_npy_float32(path, sizes, all_values<float>(shape, [&](int step, int rank, int layer) {
                        return trace.logits(step, rank, layer);
                      }));
  } else if (trace.kind() == Trace::Kind::counts) {
    write_npy_int64(path, sizes,
                    all_values<std::int64_t>(shape, [&](int step, int rank, int layer) {
                      return trace.counts(step, rank, layer);
                    }));
  } else {
    write_npy_int64(path, sizes,
                    all_values<std::int64_t>(shape, [&](int step, int rank, int layer) {
                      return trace.choices(step, rank, layer);
                    }));
    if (!trace.has_probabilities()) return;
    write_npy_float32((folder / array_name("probabilities", suffix)).string(), sizes,
                      all_values<float>(shape, [&](int step, int rank, int layer) {
                        return trace.probabilities(step, rank, layer);
                      }));
  }
}

nlohmann::ordered_json document_of(const Trace& trace, const TraceNotes& notes,
                                   const char* suffix) {
  const TraceShape& shape = trace.shape();
  const char* const kind = name_of(trace.kind());
  nlohmann::ordered_json document{{"format", "moesim trace 1"}, {"name", notes.name},
                                  {"model", notes.model},       {"source", notes.source},
                                  {"licence", notes.licence},   {"origin", notes.origin}};
  if (!notes.note.empty()) document["note"] = notes.note;
  document["kind"] = kind;
  document["axes"] = {"step", "rank", "layer"};
  if (trace.kind() != Trace::Kind::counts) document["axes"].push_back("token");
  document["axes"].push_back(trace.kind() == Trace::Kind::choices ? "choice" : "expert");
  document["tokens"] = shape.tokens;
  document["experts"] = shape.experts;
  document["top_k"] = shape.top_k;
  document["array"] = array_name(kind, suffix);
  if (trace.has_probabilities()) document["probabilities"] = array_name("probabilities", suffix);
  document["digest"] = digest_text(trace);
  if (trace.kind() == Trace::Kind::counts) {
    document["per"] = trace.per() == Trace::Per::expert ? "expert" : "rank";
  }
  if (!notes.steps.empty()) document["steps"] = notes.steps;
  if (!notes.layers.empty()) document["layers"] = notes.layers;
  return document;
}

// Whether the document in a folder, if any, names one of the arrays that a trace would be written
// to.
bool is_named(const fs::path& folder, const Trace& trace) {
  const std::string path = (folder / "trace.json").string();
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return false;
  const nlohmann::json document = parse_json_or_null(read_file(path));
  if (!document.is_object()) return false;
  const auto names = [&](const char* key, const char* stem) {
    return document.contains(key) && document[key] == array_name(stem, plain);
  };
  return names("array", name_of(trace.kind())) ||
         (trace.has_probabilities() && names("probabilities", "probabilities"));
}

// The document comes last: until then the folder has the trace that it had.
void write_as(const fs::path& folder, const Trace& trace, const TraceNotes& notes,
              const char* suffix) {
  write_arrays(folder, trace, suffix);
  write_file_atomically((folder / "trace.json").string(),
                        json_text(document_of(trace, notes, suffix), 2) + "\n");
}

}  // namespace

void write_trace(const std::string& folder, const Trace& trace, const TraceNotes& notes) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) throw Error(fmt::format("{}: cannot be made: {}", folder, failure.message()));
  if (is_named(folder, trace)) write_as(folder, trace, notes, beside);
  write_as(folder, trace, notes, plain);
  for (const char* const stem : {"logits", "choices", "counts", "probabilities"}) {
    fs::remove(fs::path(folder) / array_name(stem, beside), failure);
  }
}

}  // namespace moesim::routing
