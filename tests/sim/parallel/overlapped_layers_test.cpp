#include "sim/parallel/overlapped_layers.hpp"

#include <vector>

#include "tests/support/catch.hpp"

using moesim::Picoseconds;
using moesim::parallel::LayerPiece;
using moesim::parallel::LayerPieces;
using moesim::parallel::overlapped_pieces;
using moesim::parallel::overlapped_time;
using moesim::parallel::OverlapRules;
using moesim::parallel::PieceSpan;

namespace {

// Attention 4, 4, 4; experts 2, 2, 2; each exchange `exchange`.
std::vector<LayerPieces> layers(std::size_t count, int exchange) {
  const Picoseconds four(4);
  const Picoseconds two(2);
  const Picoseconds rows(exchange);
  return std::vector<LayerPieces>(count, {four, four, four, two, two, two, rows, rows, rows, rows});
}

std::int64_t time_of(int exchange, std::size_t forward = 4, std::size_t backward = 4) {
  return overlapped_time(layers(forward, exchange), layers(backward, exchange), OverlapRules{})
      .count;
}

}  // namespace

TEST_CASE("a pair of chunks of four layers takes the known times") {
  CHECK(time_of(0) == 72);  // 4 x (6 + 12): compute alone
  CHECK(time_of(3) == 72);  // all hidden
  CHECK(time_of(6) == 98);  // exchanges alone take 96
}

TEST_CASE("layers without a partner run alone") {
  // Forward alone: attention 4, dispatch 3, experts 2, combine 3; backward alone, weight gradients
  // under the next exchange: combine 3, experts 2 + 2, dispatch 3, attention 4 + 4.
  CHECK(time_of(3, 1, 0) == 12);
  CHECK(time_of(3, 2, 0) == 24);
  CHECK(time_of(3, 0, 1) == 3 + 2 + 3 + 8);  // dispatch starts after the experts' 2
  CHECK(time_of(3, 0, 0) == 0);
  const std::int64_t pair = time_of(3, 1, 1);
  CHECK(time_of(3, 2, 1) <= pair + 12);
  CHECK(time_of(3, 2, 1) > pair);
}

TEST_CASE("an exchange on SMs slows the compute beside it") {
  OverlapRules rules;
  rules.sms = 4;
  rules.exchange_sms = 2;
  // One forward layer: nothing is computed beside its exchanges.
  CHECK(overlapped_time(layers(1, 3), {}, rules).count == 12);
  LayerPieces ahead{};
  ahead.attention_forward = Picoseconds(10);
  LayerPieces back{};
  back.combine_backward = Picoseconds(6);
  // 6 beside the exchange do half of it, 3; the other 7 at full speed.
  CHECK(overlapped_time(std::vector{ahead}, std::vector{back}, rules).count == 13);
  rules.exchange_sms = 0;
  CHECK(overlapped_time(std::vector{ahead}, std::vector{back}, rules).count == 10);
}

TEST_CASE("rules and durations that cannot be are errors") {
  CHECK_THROWS_WITH(overlapped_time(layers(1, 3), {}, {.sms = 0, .exchange_sms = 0}),
                    ContainsSubstring("OverlapRules::sms 0"));
  CHECK_THROWS_WITH(overlapped_time(layers(1, 3), {}, {.sms = 4, .exchange_sms = 4}),
                    ContainsSubstring("exchange_sms 4: out of range: from 0 to 3"));
  // 30 days of 132 SMs are more than 63 bits of picoseconds x SMs.
  LayerPieces long_one{};
  long_one.attention_forward = Picoseconds::from_us(30 * 86400e6);
  CHECK_THROWS_WITH(overlapped_time(std::vector{long_one}, {}, {.sms = 132, .exchange_sms = 32}),
                    ContainsSubstring("720 hours"));
}

TEST_CASE("the pieces of a pair of layers ran where the times say") {
  // compute: attention 0-4, then experts wait for combine_bwd, 6; exchange: combine_bwd 0-6,
  // dispatch_fwd 6-12, dispatch_bwd 12-18, combine_fwd 18-24.
  const std::vector<PieceSpan> pieces =
      overlapped_pieces(layers(1, 6), layers(1, 6), OverlapRules{});
  const auto span = [&](LayerPiece wanted) {
    for (const PieceSpan& piece : pieces) {
      if (piece.piece == wanted) return std::pair(piece.start.count, piece.end.count);
    }
    return std::pair(std::int64_t{-1}, std::int64_t{-1});
  };
  using Span = std::pair<std::int64_t, std::int64_t>;
  CHECK(pieces.size() == 10);
  CHECK(span(LayerPiece::combine_backward) == Span(0, 6));
  CHECK(span(LayerPiece::attention_forward) == Span(0, 4));
  CHECK(span(LayerPiece::experts_backward) == Span(6, 8));
  CHECK(span(LayerPiece::experts_weight_gradient) == Span(8, 10));
  CHECK(span(LayerPiece::dispatch_forward) == Span(6, 12));
  CHECK(span(LayerPiece::experts_forward) == Span(12, 14));
  CHECK(span(LayerPiece::dispatch_backward) == Span(12, 18));
  CHECK(span(LayerPiece::combine_forward) == Span(18, 24));
  CHECK(span(LayerPiece::attention_backward) == Span(18, 22));
  CHECK(span(LayerPiece::attention_weight_gradient) == Span(22, 26));
  CHECK(time_of(6, 1, 1) == 26);
}
