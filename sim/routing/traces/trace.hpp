#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace moesim::routing {

// The size of a trace. Steps, ranks and layers are at least 1.
struct TraceShape {
  int steps = 1;
  int ranks = 1;
  int layers = 1;
  std::int64_t tokens = 1;  // per step, rank and layer
  int experts = 1;
  int top_k = 1;  // experts per token of the recorded model; choices: how many are stored
};

// Recorded routing (traces/README.md): router logits, expert choices or expert counts of every
// step, rank and MoE layer.
class Trace {
 public:
  // The largest number of tokens of a step, rank and layer: sums of counts do not overflow.
  static constexpr std::int64_t most_tokens = std::int64_t{1} << 40;

  enum class Kind { logits, choices, counts };
  // What a count refers to: an expert, or all experts of a rank (split sizes of an exchange).
  enum class Per { expert, rank };

  // `path`: a JSON document of profiles/schema/trace.schema.json, or a folder with a trace.json.
  // Throws UsageError naming file, key and place: a document or array that is damaged or does not
  // match the other, NaN or +inf logits, an expert out of range or chosen twice by one token,
  // probabilities outside 0..1 or rising with the choice, counts that do not add up to tokens times
  // top_k or exceed the tokens, arrays that are not those the document was written with.
  static std::shared_ptr<const Trace> load(const std::string& path);
  // The same from memory: counts [step, rank, layer, expert]; `name` replaces the file name.
  static std::shared_ptr<const Trace> of_counts(const std::string& name, const TraceShape& shape,
                                                std::vector<std::int64_t> counts,
                                                Per per = Per::expert);
  // Logits [step, rank, layer, token, expert], as many as the shape says.
  static std::shared_ptr<const Trace> of_logits(const std::string& name, const TraceShape& shape,
                                                std::vector<float> logits);
  // Experts [step, rank, layer, token, choice], and the softmax probability of each, or none.
  static std::shared_ptr<const Trace> of_choices(const std::string& name, const TraceShape& shape,
                                                 std::vector<std::uint16_t> choices,
                                                 std::vector<float> probabilities);

  Kind kind() const { return kind_; }
  Per per() const { return per_; }
  const TraceShape& shape() const { return shape_; }
  const std::string& file() const { return file_; }
  // A hash of the contents: traces with equal digests route equally.
  std::uint64_t digest() const { return digest_; }
  // A hash of its arrays alone, whatever the document says of their axes.
  std::uint64_t array_digest() const { return array_digest_; }
  bool has_probabilities() const { return !probabilities_.empty(); }

  // The values of one step, rank and layer, each below its length in shape(); empty for a trace of
  // another kind.
  std::span<const float> logits(int step, int rank, int layer) const;           // [token, expert]
  std::span<const std::uint16_t> choices(int step, int rank, int layer) const;  // [token, choice]
  std::span<const float> probabilities(int step, int rank, int layer) const;    // [token, choice]
  std::span<const std::int64_t> counts(int step, int rank, int layer) const;    // [expert]

 private:
  friend class TraceReader;
  void check_logits() const;
  void check_choices() const;
  void check_probabilities() const;
  void check_counts() const;
  void seal();
  // An empty trace of that kind and shape; throws UsageError unless it has `found` values.
  static std::shared_ptr<Trace> made(const std::string& name, Kind kind, const TraceShape& shape,
                                     std::size_t found);

  // "step 3, rank 0, layer 1" of the value at `index`, with `each` values per step, rank and layer.
  std::string place(std::size_t index, std::size_t each) const;
  template <typename Value>
  std::span<const Value> part(const std::vector<Value>& values, int step, int rank,
                              int layer) const;

  std::string file_;
  std::string array_file_, probability_file_;  // for messages
  Kind kind_ = Kind::counts;
  Per per_ = Per::expert;
  TraceShape shape_;
  std::uint64_t digest_ = 0, array_digest_ = 0;
  std::vector<float> logits_, probabilities_;
  std::vector<std::uint16_t> choices_;
  std::vector<std::int64_t> counts_;
};

// The contents of a trace document besides its array; texts must not be empty.
struct TraceNotes {
  std::string name, model, source, licence, origin, note;
  std::vector<std::int64_t> steps, layers;  // numbers; none: not stated
};

// Writes `trace` as FOLDER/counts.npy, logits.npy (float32) or choices.npy, with probabilities.npy
// where there are any, and FOLDER/trace.json, the document last: a folder without a document is not
// a trace. Creates the folder. A trace that was there is replaced so that a kill at any time leaves
// the old one or the new one whole: where a document names the arrays, they are first written as
// logits.new.npy. Throws Error if it cannot be written.
void write_trace(const std::string& folder, const Trace& trace, const TraceNotes& notes);

}  // namespace moesim::routing
