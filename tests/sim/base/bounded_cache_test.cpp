#include "sim/base/bounded_cache.hpp"

#include <atomic>
#include <string>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/parallel.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;

namespace {

struct Sized {
  std::string text;
  std::size_t bytes() const { return text.size(); }
};
using Cache = BoundedCache<int, Sized>;

// Ten bytes each.
Cache::Held ask(Cache& cache, int key, int& made) {
  return cache.get(key, [&] {
    ++made;
    return std::make_shared<const Sized>(Sized{std::string(10, static_cast<char>('a' + key))});
  });
}

}  // namespace

TEST_CASE("beyond its bytes a cache forgets what was asked for longest ago") {
  Cache cache(30);
  int made = 0;
  for (const int key : {0, 1, 2}) ask(cache, key, made);
  CHECK(cache.bytes() == 30);
  const Cache::Held first = ask(cache, 0, made);  // now 1 is the oldest
  CHECK(made == 3);
  ask(cache, 3, made);
  CHECK(cache.bytes() == 30);
  CHECK(ask(cache, 0, made) == first);
  CHECK(made == 4);
  CHECK(ask(cache, 1, made)->text == "bbbbbbbbbb");  // made again
  CHECK(made == 5);
  CHECK(cache.bytes() == 30);
}

TEST_CASE("a value that is held outlives its place in the cache") {
  Cache cache(10);
  int made = 0;
  const Cache::Held held = ask(cache, 0, made);
  ask(cache, 1, made);
  CHECK(held->text == "aaaaaaaaaa");
  CHECK(ask(cache, 0, made) != held);
}

TEST_CASE("one value larger than a cache is kept until the next") {
  Cache cache(5);
  int made = 0;
  ask(cache, 0, made);
  ask(cache, 0, made);
  CHECK(made == 1);
  CHECK(cache.bytes() == 10);
}

TEST_CASE("a value that could not be made is tried again") {
  Cache cache(100);
  CHECK_THROWS_AS(cache.get(0, []() -> Cache::Held { throw Error("no"); }), Error);
  int made = 0;
  CHECK(ask(cache, 0, made)->text == "aaaaaaaaaa");
  CHECK(cache.bytes() == 10);
}

TEST_CASE("threads share what one of them makes, and stay below the bound") {
  Cache cache(1000);
  std::atomic<int> made{0};
  std::atomic<int> wrong{0};
  parallel_for(400, 4, [&](std::size_t at) {
    const int key = static_cast<int>(at % 20);
    const Cache::Held value = cache.get(key, [&] {
      ++made;
      return std::make_shared<const Sized>(Sized{std::string(10, static_cast<char>('a' + key))});
    });
    if (value->text[0] != static_cast<char>('a' + key)) ++wrong;
  });
  CHECK(made == 20);
  CHECK(wrong == 0);
  CHECK(cache.bytes() == 200);
}
