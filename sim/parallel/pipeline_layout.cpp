#include "sim/parallel/pipeline_layout.hpp"

#include <fmt/format.h>

#include <cassert>
#include <cctype>
#include <optional>

#include "sim/base/error.hpp"
#include "sim/base/text.hpp"

namespace moesim::parallel {
namespace {

constexpr std::size_t max_symbols = 100'000;
constexpr int most_nested = 16;

struct Symbol {
  char letter = 0;
  std::size_t at = 0;
};
using Symbols = std::vector<Symbol>;

[[noreturn]] void fail_at(std::string_view text, std::size_t at, const std::string& why) {
  const std::string place =
      at < text.size() ? fmt::format("character {}, '{}'", at + 1, text[at]) : "the end";
  throw UsageError(fmt::format("--pipeline-layout '{}': {}: {}", text, place, why));
}

// Spreads the repetitions of a text into symbols.
class LayoutReader {
 public:
  explicit LayoutReader(std::string_view text) : text_(text) {}

  Symbols read() {
    Symbols symbols = sequence(std::nullopt);
    if (symbols.empty()) fail_at(text_, text_.size(), "it is empty: write one such as 'Et*4|t*4L'");
    return symbols;
  }

 private:
  static bool is_blank(char letter) { return letter == ' ' || letter == ','; }

  char next() {
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  // The symbols up to the end of the text or, inside a bracket, up to its ')'.
  Symbols sequence(std::optional<std::size_t> bracket) {
    Symbols symbols;
    while (const char letter = next()) {
      if (letter == ')') {
        if (!bracket) fail_at(text_, at_, "no '(' stands before it");
        ++at_;
        return symbols;
      }
      append(symbols, item(letter));
    }
    if (bracket) fail_at(text_, *bracket, "the bracket is not closed: add ')'");
    return symbols;
  }

  Symbols item(char letter) {
    const std::size_t start = at_++;
    if (letter == '(') {
      if (++depth_ > most_nested) {
        fail_at(text_, start, fmt::format("brackets are nested more than {} deep", most_nested));
      }
      const Symbols inner = sequence(start);
      --depth_;
      return repeated(inner);
    }
    if (letter == '|' || letter == '/') return {{'|', start}};
    if (std::string_view("EtmL").find(letter) == std::string_view::npos) {
      fail_at(text_, start,
              "not a symbol: E embedding, t decoder layer, m multi-token prediction, L loss, '|' "
              "the end of a chunk, '*n' after a letter or bracket");
    }
    return repeated({{letter, start}});
  }

  Symbols repeated(const Symbols& once) {
    if (next() != '*') return once;
    const std::size_t star = at_++;
    std::size_t end = at_;
    while (end < text_.size() && std::isdigit(static_cast<unsigned char>(text_[end])) != 0) ++end;
    const auto count = parse_number<std::size_t>(text_.substr(at_, end - at_));
    if (!count || *count < 1 || *count > max_symbols) {
      fail_at(text_, star, fmt::format("a whole number from 1 to {} follows '*'", max_symbols));
    }
    at_ = end;
    Symbols all;
    for (std::size_t copy = 0; copy < *count && !once.empty(); ++copy) append(all, once);
    return all;
  }

  void append(Symbols& symbols, const Symbols& more) const {
    symbols.insert(symbols.end(), more.begin(), more.end());
    if (symbols.size() > max_symbols) {
      fail_at(text_, at_ - 1, fmt::format("more than {} symbols up to here", max_symbols));
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

// Puts symbols into chunks, one after another.
class LayoutBuilder {
 public:
  explicit LayoutBuilder(std::string_view text) : text_(text) {
    layout_.source = std::string(text);
    layout_.chunks.emplace_back();
  }

  void add(const Symbol& symbol) {
    check_order(symbol);
    layout_.chunks.back().at = symbol.at;
    if (symbol.letter == '|') {
      layout_.chunks.emplace_back();
    } else {
      place(symbol.letter);
    }
  }

  PipelineLayout finished() const {
    if (!loss_) fail_at(text_, text_.size(), "the last chunk ends with the loss 'L'");
    return layout_;
  }

 private:
  void check_order(const Symbol& symbol) const {
    const auto fail = [&](const char* why) { fail_at(text_, symbol.at, why); };
    if (loss_) fail("nothing comes after the loss 'L'");
    if (!embedding_ && symbol.letter != 'E') fail("the first symbol is the embedding 'E'");
    if (embedding_ && symbol.letter == 'E') fail("the embedding 'E' is there once");
    if (symbol.letter == 't' && mtp_) fail("decoder layers 't' come before 'm'");
    if (symbol.letter == 'm' && layers_ == 0) fail("'m' comes after the decoder layers 't'");
  }

  void place(char letter) {
    PipelineChunk& chunk = layout_.chunks.back();
    switch (letter) {
      case 'E':
        chunk.embedding = embedding_ = true;
        break;
      case 'm':
        ++chunk.mtp, mtp_ = true;
        break;
      case 'L':
        chunk.loss = loss_ = true;
        break;
      default:
        if (chunk.layers++ == 0) chunk.first_layer = layers_;
        ++layers_;
    }
  }

  std::string_view text_;
  PipelineLayout layout_;
  int layers_ = 0;
  bool embedding_ = false;
  bool mtp_ = false;
  bool loss_ = false;
};

// "ttt", or "t*4" where that is shorter.
std::string letters(char letter, int count) {
  if (count < 4) return std::string(static_cast<std::size_t>(count), letter);
  return fmt::format("{}*{}", letter, count);
}

}  // namespace

std::string PipelineChunk::text() const {
  return (embedding ? "E" : "") + letters('t', layers) + letters('m', mtp) + (loss ? "L" : "");
}

int PipelineLayout::layers() const {
  int sum = 0;
  for (const PipelineChunk& chunk : chunks) sum += chunk.layers;
  return sum;
}

int PipelineLayout::mtp() const {
  int sum = 0;
  for (const PipelineChunk& chunk : chunks) sum += chunk.mtp;
  return sum;
}

std::string PipelineLayout::text() const {
  std::string text;
  for (std::size_t first = 0; first < chunks.size();) {
    const std::string chunk = chunks[first].text();
    std::size_t end = first;
    while (end < chunks.size() && chunks[end].text() == chunk) ++end;
    if (end == chunks.size()) --end;  // no bar ends the last chunk
    const std::size_t alike = end - first;
    if (alike > 2) {
      text += fmt::format("({}|)*{}", chunk, alike);
    } else {
      for (std::size_t copy = 0; copy < alike; ++copy) text += chunk + "|";
    }
    if (end + 1 == chunks.size()) {
      text += chunks[end].text();
      break;
    }
    first = end;
  }
  return text;
}

PipelineLayout parse_pipeline_layout(std::string_view text) {
  LayoutBuilder builder(text);
  for (const Symbol& symbol : LayoutReader(text).read()) builder.add(symbol);
  return builder.finished();
}

PipelineLayout even_pipeline_layout(int layers, int chunks, int mtp) {
  assert(chunks > 0 && layers % chunks == 0);
  return nearly_even_pipeline_layout(layers, chunks, mtp);
}

PipelineLayout nearly_even_pipeline_layout(int layers, int chunks, int mtp) {
  std::vector<int> held(static_cast<std::size_t>(chunks), layers / chunks);
  for (int chunk = 0; chunk < layers % chunks; ++chunk) ++held[static_cast<std::size_t>(chunk)];
  return uneven_pipeline_layout(held, mtp);
}

PipelineLayout uneven_pipeline_layout(const std::vector<int>& layers, int mtp) {
  PipelineLayout layout;
  int first = 0;
  for (const int held : layers) {
    PipelineChunk& filled = layout.chunks.emplace_back();
    filled.first_layer = first;
    filled.layers = held;
    first += held;
  }
  layout.chunks.front().embedding = true;
  layout.chunks.back().mtp = mtp;
  layout.chunks.back().loss = true;
  return layout;
}

std::vector<int> layers_of_chunks(const UnevenStages& stages) {
  const int counted = (stages.counts_embedding ? 1 : 0) + (stages.counts_loss ? 1 : 0);
  const int rest = stages.layers + counted - stages.first.value_or(0) - stages.last.value_or(0);
  const int ranks = stages.ranks - (stages.first ? 1 : 0) - (stages.last ? 1 : 0);
  const std::string left =
      fmt::format("{} of {} layers{} are left for {} pipeline ranks", rest, stages.layers,
                  counted > 0 ? ", embedding or loss" : "", ranks);
  if (rest < 0) {
    throw UsageError(fmt::format("the first and the last stage have {} layers, of {}",
                                 stages.first.value_or(0) + stages.last.value_or(0),
                                 stages.layers));
  }
  if (ranks < 0 || (ranks == 0 && rest != 0)) throw UsageError(left);
  if (ranks > 0 && rest % ranks != 0) throw UsageError(left + ", which they do not divide over");
  std::vector<int> of_rank(static_cast<std::size_t>(stages.ranks), ranks > 0 ? rest / ranks : 0);
  if (stages.first) of_rank.front() = *stages.first;
  if (stages.last) of_rank.back() = *stages.last;
  std::vector<int> of_chunk;
  for (int round = 0; round < stages.virtual_stages; ++round) {
    for (const int held : of_rank) {
      if (held % stages.virtual_stages != 0) {
        throw UsageError(
            fmt::format("{} layers of a pipeline rank do not divide over its {} chunks", held,
                        stages.virtual_stages));
      }
      of_chunk.push_back(held / stages.virtual_stages);
    }
  }
  if (stages.counts_embedding) --of_chunk.front();
  if (stages.counts_loss) --of_chunk.back();
  if (of_chunk.front() < 0 || of_chunk.back() < 0) {
    throw UsageError("the first or last chunk has no layer that embedding or loss can stand for");
  }
  return of_chunk;
}

void check_pipeline_layout(const PipelineLayout& layout, int layers, int ranks) {
  const int chunks = static_cast<int>(layout.chunks.size());
  const std::string& text = layout.source;
  if (layout.layers() != layers) {
    int seen = 0;
    std::size_t at = text.size();
    for (const PipelineChunk& chunk : layout.chunks) {
      seen += chunk.layers;
      if (seen > layers) {
        at = chunk.at;
        break;
      }
    }
    fail_at(text, at,
            fmt::format("{} decoder layers 't', but the model has {}", layout.layers(), layers));
  }
  if (chunks % ranks != 0) {
    fail_at(text, text.size(),
            fmt::format("{} chunks do not divide over --pipeline-parallel {}: end {} with '|', "
                        "empty ones count too",
                        chunks, ranks, (chunks / ranks + 1) * ranks - 1));
  }
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const PipelineChunk& held = layout.chunks[static_cast<std::size_t>(chunk)];
    if (held.mtp == 0) continue;
    const int rank = chunk % ranks;
    if (chunk < chunks - ranks || (rank == 0 && ranks > 1)) {
      fail_at(text, held.at,
              fmt::format("'m' is in chunk {} of {}, number {} of pipeline rank {}; it must be in "
                          "the last chunk of a rank, and not on rank 0",
                          chunk + 1, chunks, chunk / ranks + 1, rank));
    }
  }
}

}  // namespace moesim::parallel
