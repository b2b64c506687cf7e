// What is wrong with a profile document is said with its file and key.
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/profile/profile.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::profile;
using Json = nlohmann::json;

namespace {

namespace fs = std::filesystem;

const std::string shipped =
    std::string(MOESIM_SOURCE_DIR) + "/profiles/hardware/a100-sxm-80gb.json";

// A file of the test's own, gone with it.
class Scratch {
 public:
  Scratch()
      : path_(fs::temp_directory_path() / ("profile-test-" + std::to_string(getpid()) + ".json")) {}
  ~Scratch() { fs::remove(path_); }
  Scratch(const Scratch&) = delete;  // owns the file
  Scratch& operator=(const Scratch&) = delete;
  std::string write(const std::string& text) const {
    write_file_atomically(path_.string(), text);
    return path_.string();
  }

 private:
  fs::path path_;
};

void refuses(const std::string& text, const std::string& key) {
  const Scratch scratch;
  const std::string path = scratch.write(text);
  INFO("expected a complaint about " << key);
  CHECK_THROWS_AS(Profile::load(path), UsageError);
  CHECK_THROWS_WITH(Profile::load(path), ContainsSubstring(path) && ContainsSubstring(key));
}

// The shipped document with one change.
void refuses_change(const std::function<void(Json&)>& change, const std::string& key) {
  Json document = Json::parse(read_file(shipped));
  change(document);
  refuses(document.dump(), key);
}

Json& curve_of(Json& document, const std::string& op) {
  for (Json& curve : document["curves"]) {
    if (curve["op"] == op) return curve;
  }
  throw std::logic_error("no curve of " + op);
}

}  // namespace

TEST_CASE("the shipped profiles load and know their devices") {
  const Profile profile = Profile::load(shipped);
  CHECK(profile.name() == "a100-sxm-80gb");
  CHECK(profile.device().sms == 108);
  CHECK(profile.device().hbm_bytes.gib() == Approx(80));
  CHECK(profile.device().hbm_bandwidth.gb_per_s() == Approx(2039));
  CHECK(profile.device().peak_bf16_flops == Approx(312e12));
  CHECK(profile.device().nvlink_bandwidth.gb_per_s() == Approx(300));
  CHECK(profile.device().gpus_per_node == 8);
  CHECK(!profile.missing().empty());
}

// nvidia-smi's "... / 183359MiB" and the like: the gigabytes in the names of these GPUs are binary.
TEST_CASE("Blackwell GPUs have the memory that their driver reports") {
  const std::pair<const char*, std::int64_t> reported[] = {
      {"b200-sxm", 183'359}, {"gb200", 189'471}, {"b300-sxm", 275'040}, {"gb300", 284'208}};
  for (const auto& [name, mib] : reported) {
    CAPTURE(name);
    CHECK(Profile::load(name).device().hbm_bytes.count == mib << 20);
  }
}

TEST_CASE("an unchanged copy loads") {
  const Scratch scratch;
  const Profile copy = Profile::load(scratch.write(Json::parse(read_file(shipped)).dump()));
  const Profile original = Profile::load(shipped);
  CHECK(copy.memory(1e8).time_us == original.memory(1e8).time_us);
}

TEST_CASE("an unknown name lists the shipped ones") {
  CHECK_THROWS_AS(Profile::load("a100"), UsageError);
  CHECK_THROWS_WITH(Profile::load("a100-sxm"), ContainsSubstring("a100-sxm-80gb") &&
                                                   ContainsSubstring("h100-sxm") &&
                                                   ContainsSubstring("h200-sxm"));
}

TEST_CASE("a file that is absent or no JSON is refused") {
  CHECK_THROWS_WITH(Profile::load("/nonexistent/x.json"), ContainsSubstring("/nonexistent/x.json"));
  refuses("{\"format\": ", "line 1");
  refuses("", "line 1");
  refuses("[1, 2]", "expected an object");
}

TEST_CASE("a document of another kind or version is refused") {
  refuses_change([](Json& d) { d["format"] = "moesim-model"; }, "format");
  refuses_change([](Json& d) { d.erase("format"); }, "format");
  refuses_change([](Json& d) { d["version"] = 2; }, "version 2");
  refuses_change([](Json& d) { d["version"] = "1"; }, "version");
  refuses_change([](Json& d) { d.erase("version"); }, "version");
}

TEST_CASE("a missing or mistyped key is named") {
  refuses_change([](Json& d) { d.erase("name"); }, "name");
  refuses_change([](Json& d) { d["name"] = 5; }, "/name");
  refuses_change([](Json& d) { d.erase("devices"); }, "devices");
  refuses_change([](Json& d) { d["devices"] = Json::array(); }, "/devices");
  refuses_change([](Json& d) { d["devices"][0].erase("sms"); }, "sms");
  refuses_change([](Json& d) { d["devices"][0]["sms"]["value"] = "108"; }, "/devices/0/sms/value");
  refuses_change([](Json& d) { d["devices"][0]["sms"]["value"] = -1; }, "/devices/0/sms/value");
  refuses_change([](Json& d) { d["devices"][0]["sms"].erase("source"); }, "/devices/0/sms");
  refuses_change([](Json& d) { d["devices"][0]["typo"] = 1; }, "/devices/0");
  refuses_change([](Json& d) { d["unknown"] = 1; }, "unknown");
  refuses_change([](Json& d) { d["missing"][0].erase("hint"); }, "/missing/0");
  refuses_change([](Json& d) { d["curves"] = 3; }, "/curves");
}

TEST_CASE("a curve that is none is named") {
  refuses_change([](Json& d) { d["curves"][0]["op"] = "gems"; }, "/curves/0");
  refuses_change([](Json& d) { d["curves"][0].erase("residual"); }, "/curves/0");
  refuses_change([](Json& d) { d["curves"][0]["origin"] = "guessed"; }, "/curves/0/origin");
  refuses_change([](Json& d) { d["curves"][0].erase("source"); }, "/curves/0");
  refuses_change([](Json& d) { curve_of(d, "memory")["bytes"][1] = 1; }, "bytes");
  refuses_change([](Json& d) { curve_of(d, "memory")["time_us"].erase(0); }, "time_us");
  refuses_change([](Json& d) { curve_of(d, "memory")["params"]["kernel"] = "x"; }, "kernel");
  refuses_change([](Json& d) { curve_of(d, "permute")["efficiency"] = 1.5; }, "efficiency");
  refuses_change([](Json& d) { curve_of(d, "all-to-all")["branches"][1]["gpus"] = 2; }, "gpus");
  refuses_change([](Json& d) { curve_of(d, "all-to-all")["branches"][0]["gpus"] = 1; }, "gpus");
  refuses_change([](Json& d) { curve_of(d, "all-to-all")["params"].erase("nccl"); }, "params");
  refuses_change([](Json& d) { curve_of(d, "attention")["physics"].erase("tile_us"); }, "physics");
  refuses_change([](Json& d) { curve_of(d, "attention")["physics"]["tile_us"] = -1; }, "tile_us");
  refuses_change([](Json& d) { curve_of(d, "attention")["corrections"][0]["values"].erase(0); },
                 "/corrections/0/values");
  refuses_change([](Json& d) { curve_of(d, "attention")["corrections"][0]["x"] = "log2_colour"; },
                 "/corrections/0");
}

TEST_CASE("a profile without a curve refuses in its own words") {
  Json document = Json::parse(read_file(shipped));
  document["curves"] = Json::array();
  document["missing"] = Json::array(
      {{{"suite", "attention"}, {"reason", "no GPU was there"}, {"hint", "run it on one"}}});
  const Scratch scratch;
  const Profile profile = Profile::load(scratch.write(document.dump()));
  CHECK_THROWS_AS(profile.attention({1, 128, 1, 1, 128}, false), Error);
  CHECK_THROWS_WITH(profile.attention({1, 128, 1, 1, 128}, false),
                    ContainsSubstring("no GPU was there") && ContainsSubstring("run it on one"));
  CHECK_THROWS_WITH(profile.gemm(1, 1, 1), ContainsSubstring("gemm"));
  CHECK_THROWS_WITH(profile.memory(1), ContainsSubstring("streaming"));
  CHECK_THROWS_WITH(profile.permute(1, 1, 1), ContainsSubstring("permute"));
  CHECK_THROWS_WITH(profile.expert_ffn(1, 1, 1, 1), ContainsSubstring("expert_ffn"));
  CHECK_THROWS_WITH(profile.collective(Collective::all_reduce, 2, 1),
                    ContainsSubstring("all-reduce"));
  CHECK_THROWS_WITH(profile.collective(Collective::all_reduce, 2, 1, "2.23"),
                    ContainsSubstring("all-reduce"));
}
