#include "kernels/measure/points/product_element.hpp"

#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "sim/base/random.hpp"
#include "tests/support/catch.hpp"

using moesim::kernels::measure::ProductElement;

namespace {

// To the nearest, ties to even.
float bf16(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return std::bit_cast<float>((bits + 0x7fffU + (bits >> 16U & 1U)) & 0xffff0000U);
}

constexpr int checked = 24;  // as many elements as the workloads look at, or fewer

struct Operands {
  std::vector<float> left, right;
};

Operands draw(std::size_t terms, moesim::Stream& stream) {
  Operands in;
  for (std::size_t term = 0; term < terms; ++term) {
    in.left.push_back(bf16(2 * stream.uniform() - 1));
    in.right.push_back(bf16(0.1 * stream.uniform() - 0.05));
  }
  return in;
}

ProductElement reference(const Operands& in) {
  ProductElement element;
  for (std::size_t term = 0; term < in.left.size(); ++term) {
    element.add(static_cast<double>(in.left[term]), static_cast<double>(in.right[term]));
  }
  return element;
}

float sum(const Operands& in, std::size_t first, std::size_t last) {
  float total = 0;
  for (std::size_t term = first; term < last; ++term) total += in.left[term] * in.right[term];
  return total;
}

enum class Reduction { fp32, workspace, in_place };  // of the parts: where they are rounded

float split(const Operands& in, std::size_t parts, Reduction reduction) {
  const std::size_t terms = in.left.size();
  float total = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    float own = sum(in, terms * part / parts, terms * (part + 1) / parts);
    if (reduction != Reduction::fp32) own = bf16(static_cast<double>(own));
    total += own;
    if (reduction == Reduction::in_place) total = bf16(static_cast<double>(total));
  }
  return bf16(static_cast<double>(total));
}

// Whether one of the elements shows that `product` is wrong.
template <typename Product>
bool shows(std::size_t terms, moesim::Stream& stream, const Product& product) {
  bool shown = false;
  for (int element = 0; element < checked; ++element) {
    const Operands in = draw(terms, stream);
    shown |= !reference(in).matches(static_cast<double>(bf16(product(in))));
  }
  return shown;
}

}  // namespace

TEST_CASE("a product whose parts are added up in bf16 is right") {
  moesim::Stream stream({1, moesim::Purpose::test_data});
  int beyond_last_place = 0;
  for (const std::size_t terms : {std::size_t{1024}, std::size_t{4096}, std::size_t{14336}}) {
    for (int element = 0; element < 100; ++element) {
      const Operands in = draw(terms, stream);
      const ProductElement wanted = reference(in);
      for (const std::size_t parts : {2, 4, 8, 16}) {
        for (const auto reduction : {Reduction::fp32, Reduction::workspace, Reduction::in_place}) {
          const auto got = static_cast<double>(split(in, parts, reduction));
          CHECK(wanted.matches(got));
          beyond_last_place +=
              std::abs(got - wanted.value()) > std::abs(wanted.value()) * 0x1p-7 ? 1 : 0;
        }
      }
    }
  }
  // So the last place alone does not tell a right product from a wrong one.
  CHECK(beyond_last_place > 100);
}

TEST_CASE("a product of another column, or without a piece of its terms, is wrong") {
  moesim::Stream stream({2, moesim::Purpose::test_data});
  for (const std::size_t terms : {std::size_t{1024}, std::size_t{4096}, std::size_t{14336}}) {
    CAPTURE(terms);
    CHECK_FALSE(shows(terms, stream, [&](const Operands& in) { return sum(in, 0, terms); }));
    CHECK(shows(terms, stream, [&](const Operands& in) {
      return sum({in.left, draw(terms, stream).right}, 0, terms);
    }));
    CHECK(shows(terms, stream, [&](const Operands& in) { return sum(in, 0, terms - 64); }));
    CHECK(shows(terms, stream, [&](const Operands& in) { return sum(in, terms / 4, terms); }));
    CHECK(shows(terms, stream, [&](const Operands& in) { return 1.25F * sum(in, 0, terms); }));
  }
  CHECK_FALSE(ProductElement{}.matches(std::numeric_limits<double>::quiet_NaN()));
}
