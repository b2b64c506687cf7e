#include <cmath>
#include <random>
#include <vector>

#include "kernels/exchange/one_hot.cuh"
#include "kernels/exchange/rows.cuh"
#include "sim/routing/routers/router_name.hpp"
#include "tests/kernels/routing/kernel_router.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::kernels;
using namespace moesim::kernels::exchange;

namespace {

// Rows of `hidden` elements in 16-byte pieces.
template <typename Element>
class Matrix {
 public:
  Matrix(int rows, int hidden)
      : hidden_(static_cast<std::size_t>(hidden)),
        data_(static_cast<std::size_t>(rows) * hidden_ * sizeof(Element) / 16 + 1) {
    for (Vector16& piece : data_) piece = {{0x7fc07fc0U, 0x7fc07fc0U, 0x7fc07fc0U, 0x7fc07fc0U}};
  }
  Element& at(std::int64_t row, int column) {
    return reinterpret_cast<Element*>(
        data_.data())[static_cast<std::size_t>(row) * hidden_ + static_cast<std::size_t>(column)];
  }
  void* data() { return data_.data(); }
  void draw(std::mt19937& engine) {
    auto* elements = reinterpret_cast<Element*>(data_.data());
    for (std::size_t place = 0; place < data_.size() * (16 / sizeof(Element)); ++place) {
      elements[place] = from_float<Element>(static_cast<float>(engine()) * 0x1p-31F - 1.0F);
    }
  }

 private:
  std::size_t hidden_;
  std::vector<Vector16> data_;
};

struct Layer {
  std::unique_ptr<moesim::kernels::routing::KernelRank> rank;
  RouteMap map;
  int ir_rows = 0;

  Layer(const std::string& name, const std::string& factor, int experts, int tokens, unsigned seed,
        ::moesim::routing::Weights weights = ::moesim::routing::Weights::kept) {
    std::mt19937 engine(seed);
    std::vector<float> logits(static_cast<std::size_t>(experts * tokens));
    for (float& value : logits) value = static_cast<float>(engine()) * 0x1p-30F;
    ::moesim::routing::RouterConfig config = ::moesim::routing::parse_router(name, 0);
    config.capacity_factor = moesim::Decimal::parse(factor, "factor");
    config.weights = weights;
    rank = std::move(moesim::kernels::routing::route_by_kernels(config, experts, {logits})[0]);
    const auto& at = rank->buffers;
    map = {tokens,
           experts,
           rank->problem.choices(),
           rank->problem.capacity(),
           rank->problem.stride(),
           at.expert,
           at.slot,
           at.kept_rows,
           at.ir_row};
    if (map.ir_row == nullptr) return;
    ir_rows = at.ir_begin[experts];
    for (int token = 0; token < tokens; ++token) CHECK(at.ir_row[token] < ir_rows);
  }
  int rows() const { return map.experts * map.block_rows; }
  // The row of a choice, -1: failed.
  std::int64_t row(int token, int choice) const {
    const std::int64_t at = choice * map.stride + token;
    return map.slot[at] < 0 ? -1 : std::int64_t{map.expert[at]} * map.block_rows + map.slot[at];
  }
  std::int64_t ir_row(int token) const { return map.ir_row == nullptr ? -1 : map.ir_row[token]; }
  bool padding(int row) const {
    return row % map.block_rows >= map.kept_rows[row / map.block_rows];
  }
};

constexpr simt::LaunchShape shape{3, 64, 0};

template <typename Element>
void check_dispatch(Layer& layer, int hidden) {
  std::mt19937 engine(1);
  Matrix<Element> x(layer.map.tokens, hidden), rows(layer.rows(), hidden);
  Matrix<Element> ir_rows(layer.ir_rows, hidden);
  x.draw(engine);
  DispatchArguments in;
  in.map = layer.map;
  in.row_vectors = hidden * static_cast<int>(sizeof(Element)) / 16;
  in.tokens = x.data();
  in.rows = rows.data();
  in.ir_rows = ir_rows.data();
  simt::launch(
      shape, [&] { dispatch_rows(in); }, simt::Turns::shuffled);
  for (int column = 0; column < hidden; ++column) {
    for (int token = 0; token < layer.map.tokens; ++token) {
      const float value = to_float(x.at(token, column));
      for (int choice = 0; choice < layer.map.choices; ++choice) {
        const std::int64_t row = layer.row(token, choice);
        if (row >= 0) REQUIRE(to_float(rows.at(row, column)) == value);
      }
      if (layer.ir_row(token) >= 0) {
        REQUIRE(to_float(ir_rows.at(layer.ir_row(token), column)) == value);
      }
    }
    for (int row = 0; row < layer.rows(); ++row) {
      if (layer.padding(row)) REQUIRE(to_float(rows.at(row, column)) == 0.0F);
    }
  }
}

template <typename Element>
void check_combine(Layer& layer, int hidden, bool weighted, bool residual) {
  std::mt19937 engine(2);
  Matrix<Element> x(layer.map.tokens, hidden), out(layer.map.tokens, hidden);
  Matrix<Element> rows(layer.rows(), hidden), ir_rows(layer.ir_rows, hidden);
  x.draw(engine);
  rows.draw(engine);
  ir_rows.draw(engine);
  CombineArguments in;
  in.map = layer.map;
  in.row_vectors = hidden * static_cast<int>(sizeof(Element)) / 16;
  if (weighted) in.weight = layer.rank->buffers.weight;
  if (weighted) in.ir_weight = layer.rank->buffers.ir_weight;
  in.rows = rows.data();
  in.ir_rows = ir_rows.data();
  if (residual) in.residual = x.data();
  in.out = out.data();
  simt::launch({3, 64, combine_shared_bytes}, [&] { combine_rows<Element>(in); });
  for (int token = 0; token < layer.map.tokens; ++token) {
    for (int column = 0; column < hidden; ++column) {
      float sum = 0;
      for (int choice = 0; choice < layer.map.choices; ++choice) {
        const std::int64_t row = layer.row(token, choice);
        const float weight = weighted ? in.weight[choice * layer.map.stride + token] : 1.0F;
        if (row >= 0) sum = std::fma(weight, to_float(rows.at(row, column)), sum);
      }
      if (layer.ir_row(token) >= 0) {
        const float weight = weighted ? in.ir_weight[token] : 1.0F;
        sum = std::fma(weight, to_float(ir_rows.at(layer.ir_row(token), column)), sum);
      }
      if (residual) sum += to_float(x.at(token, column));
      REQUIRE(to_float(out.at(token, column)) == to_float(from_float<Element>(sum)));
    }
  }
}

template <typename Element>
void check_combine_backward(Layer& layer, int hidden) {
  std::mt19937 engine(3);
  Matrix<Element> gradient(layer.map.tokens, hidden), rows(layer.rows(), hidden);
  Matrix<Element> ir_rows(layer.ir_rows, hidden), row_gradient(layer.rows(), hidden);
  Matrix<Element> ir_gradient(layer.ir_rows, hidden);
  gradient.draw(engine);
  rows.draw(engine);
  ir_rows.draw(engine);
  std::vector<float> upstream(static_cast<std::size_t>(layer.map.stride * layer.map.choices), 9);
  std::vector<float> ir_upstream(static_cast<std::size_t>(layer.map.tokens), 9);
  CombineBackwardArguments in{layer.map,
                              hidden * static_cast<int>(sizeof(Element)) / 16,
                              layer.rank->buffers.weight,
                              layer.rank->buffers.ir_weight,
                              rows.data(),
                              ir_rows.data(),
                              gradient.data(),
                              row_gradient.data(),
                              ir_gradient.data(),
                              upstream.data(),
                              ir_upstream.data()};
  simt::launch({3, 64, combine_backward_shared_bytes}, [&] { combine_rows_backward<Element>(in); });
  const auto check = [&](Matrix<Element>& values, Matrix<Element>& gradients, std::int64_t row,
                         int token, float weight, float product) {
    double expected = 0;
    for (int column = 0; column < hidden && row >= 0; ++column) {
      const float d = to_float(gradient.at(token, column));
      expected += static_cast<double>(d) * static_cast<double>(to_float(values.at(row, column)));
      REQUIRE(to_float(gradients.at(row, column)) == to_float(from_float<Element>(d * weight)));
    }
    // Products of numbers below 1, `hidden` of them added in fp32.
    REQUIRE(static_cast<double>(product) == Approx(expected).margin(1e-6 * hidden));
  };
  for (int token = 0; token < layer.map.tokens; ++token) {
    for (int choice = 0; choice < layer.map.choices; ++choice) {
      const std::int64_t at = choice * layer.map.stride + token;
      check(rows, row_gradient, layer.row(token, choice), token, in.weight[at],
            upstream[static_cast<std::size_t>(at)]);
    }
    const float weight = in.ir_weight == nullptr ? 0.0F : in.ir_weight[token];
    check(ir_rows, ir_gradient, layer.ir_row(token), token, weight,
          ir_upstream[static_cast<std::size_t>(token)]);
  }
  for (int row = 0; row < layer.rows(); ++row) {
    for (int column = 0; column < hidden && layer.padding(row); ++column) {
      REQUIRE(to_float(row_gradient.at(row, column)) == 0.0F);
    }
  }
}

template <typename Element>
void check_all(const char* name, const char* factor, int tokens, int experts = 4) {
  Layer layer(name, factor, experts, tokens, 7);
  if (layer.map.ir_row == nullptr) layer.rank->buffers.ir_weight = nullptr;
  for (const int hidden : {16, 64, 1032}) {  // pieces: half a warp, a warp and some, many and some
    check_dispatch<Element>(layer, hidden);
    check_combine<Element>(layer, hidden, true, true);
    check_combine<Element>(layer, hidden, false, false);
    check_combine_backward<Element>(layer, hidden);
  }
}

}  // namespace

TEST_CASE("permute, combine and their backwards move and weigh the right rows") {
  for (const char* name : {"top1", "top2", "top2+fr", "top2+ir", "top2+fr+ir"}) {
    for (const char* factor : {"0.5", "2.5", "0"}) {
      INFO(name << " CF " << factor);
      check_all<Bfloat16>(name, factor, 21);
      check_all<float>(name, factor, 21);
    }
  }
  check_all<Bfloat16>("top2+ir", "1", 0);
  // More rows than a ring has pieces, and as many as there can be.
  for (const char* name : {"top8", "top15+fr+ir", "top16"}) {
    for (const char* factor : {"1", "16"}) {
      INFO(name << " CF " << factor);
      check_all<Bfloat16>(name, factor, 13, 16);
      check_all<float>(name, factor, 13, 16);
    }
  }
}

TEST_CASE("weights and permute in one launch are those of two, to the bit") {
  using ::moesim::routing::Weights;
  constexpr int hidden = 1032;
  for (const char* name : {"top1", "top2", "top3", "top2+fr"}) {
    for (const Weights weights : {Weights::kept, Weights::before_drop, Weights::raw}) {
      for (const char* factor : {"0.5", "2.5", "0"}) {
        INFO(name << " CF " << factor);
        Layer layer(name, factor, 4, 21, 9, weights);
        std::mt19937 engine(4);
        Matrix<Bfloat16> x(layer.map.tokens, hidden);
        Matrix<Bfloat16> apart(layer.rows(), hidden), fused(layer.rows(), hidden);
        x.draw(engine);
        const DispatchArguments two{layer.map, hidden / 8, x.data(), apart.data(), nullptr};
        simt::launch(shape, [&] { dispatch_rows(two); });
        const auto& at = layer.rank->buffers;
        std::vector<float> found(static_cast<std::size_t>(layer.map.stride * layer.map.choices), 9);
        auto weigh = weigh_arguments(layer.rank->problem, at);
        weigh.weight = found.data();
        const DispatchArguments one{layer.map, hidden / 8, x.data(), fused.data(), nullptr};
        simt::launch(
            shape, [&] { weigh_and_dispatch_rows(one, weigh); }, simt::Turns::shuffled);
        for (int row = 0; row < layer.rows(); ++row) {
          for (int column = 0; column < hidden; ++column) {
            REQUIRE(fused.at(row, column).bits == apart.at(row, column).bits);
          }
        }
        for (int choice = 0; choice < layer.map.choices; ++choice) {
          for (int token = 0; token < layer.map.tokens; ++token) {
            const std::int64_t place = choice * layer.map.stride + token;
            REQUIRE(bits_of(found[static_cast<std::size_t>(place)]) == bits_of(at.weight[place]));
          }
        }
      }
    }
  }
}

TEST_CASE("the one-hot masks of the einsum formulation hold each route once") {
  for (const bool weighted : {false, true}) {
    Layer layer("top2+ir", "1.5", 8, 64, 5);  // C = 12
    const int columns = layer.rows();
    REQUIRE(columns == 8 * 12);
    Matrix<Bfloat16> mask(64, columns);
    OneHotArguments in{layer.map, weighted ? layer.rank->buffers.weight : nullptr, mask.data()};
    simt::launch(shape, [&] { fill_one_hot<Bfloat16>(in); });
    for (int token = 0; token < 64; ++token) {
      std::vector<float> expected(static_cast<std::size_t>(columns), 0.0F);
      for (int choice = 0; choice < 2; ++choice) {
        if (layer.row(token, choice) < 0) continue;
        const float weight =
            weighted ? layer.rank->buffers.weight[choice * layer.map.stride + token] : 1.0F;
        expected[static_cast<std::size_t>(layer.row(token, choice))] = weight;
      }
      for (int column = 0; column < columns; ++column) {
        const float value = expected[static_cast<std::size_t>(column)];
        REQUIRE(mask.at(token, column).bits == to_bfloat16(value).bits);
      }
    }
  }
}
