#include "sim/base/no_answer.hpp"

#include "sim/base/file.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/shipped.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;

namespace {

template <class Thrown>
std::string why(const Thrown& thrown) {
  try {
    throw thrown;
  } catch (const Error&) {
    return why_unanswered();
  }
}

}  // namespace

TEST_CASE("a question that cannot be or was not measured has no answer, with a reason") {
  CHECK(why(UsageError("3 ranks do not divide 8")) == "3 ranks do not divide 8");
  CHECK(why(NoAnswer("0 GPUs")) == "0 GPUs");
  CHECK(why(BeyondMemory("too many tokens")) == "too many tokens");
  CHECK(why(NotMeasured("no curve")) == "no curve");
}

TEST_CASE("a document that is broken or not there is no answer to one question") {
  CHECK_THROWS_AS(why(BrokenDocument("a.json: /nic: 3")), BrokenDocument);
  CHECK_THROWS_AS(why(UnknownDocument("a", "unknown profile 'a'")), UnknownDocument);
  CHECK_THROWS_AS(why(UnreadableFile("a.json", "cannot read a.json")), UnreadableFile);
  const auto whole = [](const char* text) {
    try {
      Document::parse(text, "a.json").root().count("gpus");
    } catch (const Error&) {
      why_unanswered();
    }
  };
  CHECK_NOTHROW(whole(R"({"gpus": 8})"));
  CHECK_THROWS_AS(whole(R"({"gpus": 8)"), BrokenDocument);
  CHECK_THROWS_AS(whole(R"({"gpus": "eight"})"), BrokenDocument);
}

TEST_CASE("a defect is no answer, and keeps its exit code") {
  try {
    why(Error("the disk is full", ExitCode::verification_failed));
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "the disk is full");
    CHECK(error.code() == ExitCode::verification_failed);
  }
}
