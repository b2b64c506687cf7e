#include "sim/base/flag_errors.hpp"

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using Catch::Matchers::Equals;

namespace {

const TypedFlags flags = {{"cluster", "mine.json"}, {"profile", "a100,h200"}, {"model", ""}};

template <class Thrown>
Thrown caught(const TypedFlags& typed, const Thrown& thrown) {
  try {
    with_flag_of_errors(typed, [&] { throw thrown; });
  } catch (const Thrown& error) {
    return error;
  }
  FAIL("nothing was thrown");
  return thrown;
}

}  // namespace

TEST_CASE("a text names a flag, not one that begins alike") {
  CHECK(names_flag("--dispatch einsum has no dispatcher", "dispatch"));
  CHECK(names_flag("give --dispatch, or none", "dispatch"));
  CHECK(names_flag("--dispatcher deepep takes no --dispatch", "dispatch"));
  CHECK(names_flag("--dispatch", "dispatch"));
  CHECK(!names_flag("--dispatcher deepep", "dispatch"));
  CHECK(!names_flag("--overlap-slowdown 2", "overlap"));
  CHECK(!names_flag("--no--dispatch", "dispatch"));
  CHECK(!names_flag("dispatch", "dispatch"));
}

TEST_CASE("an error about a document says which flag asked for it") {
  const auto unknown = caught(flags, UnknownDocument("h200", "unknown profile 'h200'"));
  CHECK_THAT(unknown.what(), Equals("--profile: unknown profile 'h200'"));
  CHECK(unknown.name() == "h200");
  const auto unreadable = caught(flags, UnreadableFile("mine.json", "cannot read mine.json"));
  CHECK_THAT(unreadable.what(), Equals("--cluster: cannot read mine.json"));
  CHECK(unreadable.path() == "mine.json");
  const auto usage = caught(flags, UsageError("mine.json: line 3: no number"));
  CHECK_THAT(usage.what(), Equals("--cluster: mine.json: line 3: no number"));
  const auto failed = caught(flags, Error("mine.json: it has gone", ExitCode::timeout));
  CHECK_THAT(failed.what(), Equals("--cluster: mine.json: it has gone"));
  CHECK(failed.code() == ExitCode::timeout);
}

TEST_CASE("an error that no flag, or several, asked for keeps its text and its type") {
  const auto unknown = caught(flags, UnknownDocument("other", "unknown profile 'other'"));
  CHECK_THAT(unknown.what(), Equals("unknown profile 'other'"));
  CHECK(unknown.name() == "other");
  const auto unreadable = caught(flags, UnreadableFile("other.json", "cannot read other.json"));
  CHECK(unreadable.path() == "other.json");
  const auto twice = caught({{"cluster", "x.json"}, {"model", "x.json"}},
                            UnreadableFile("x.json", "cannot read x.json"));
  CHECK_THAT(twice.what(), Equals("cannot read x.json"));
  // The name of this file only begins like the one that was typed.
  CHECK_THAT(caught(flags, UsageError("mine.jsonl: empty")).what(), Equals("mine.jsonl: empty"));
}
