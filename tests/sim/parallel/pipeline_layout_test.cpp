#include "sim/parallel/pipeline_layout.hpp"

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using moesim::UsageError;
using moesim::parallel::check_pipeline_layout;
using moesim::parallel::even_pipeline_layout;
using moesim::parallel::layers_of_chunks;
using moesim::parallel::nearly_even_pipeline_layout;
using moesim::parallel::parse_pipeline_layout;
using moesim::parallel::PipelineChunk;
using moesim::parallel::PipelineLayout;
using moesim::parallel::uneven_pipeline_layout;
using moesim::parallel::UnevenStages;

namespace {

std::vector<int> layers_of(const PipelineLayout& layout) {
  std::vector<int> layers;
  for (const PipelineChunk& chunk : layout.chunks) layers.push_back(chunk.layers);
  return layers;
}

void check_refused(const std::string& text, const std::string& place, const std::string& why) {
  CAPTURE(text);
  try {
    parse_pipeline_layout(text);
    FAIL("no error");
  } catch (const UsageError& error) {
    const std::string message = error.what();
    CAPTURE(message);
    CHECK(message.find(text) != std::string::npos);
    CHECK(message.find(place) != std::string::npos);
    CHECK(message.find(why) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("a layout of 16 chunks is read") {
  for (const char* text : {"Et*4|(t*4|)*14tmL", "Et*4/(t*4/)*14tmL", "E,t*4 | (tttt|)*14 t,m,L"}) {
    CAPTURE(text);
    const PipelineLayout layout = parse_pipeline_layout(text);
    REQUIRE(layout.chunks.size() == 16);
    // E + 4, 14 x 4, then 1 + MTP + loss: 4 + 56 + 1 = 61 layers.
    CHECK(layers_of(layout) == std::vector<int>{4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1});
    CHECK(layout.layers() == 61);
    CHECK(layout.mtp() == 1);
    CHECK((layout.chunks.front().embedding && !layout.chunks.front().loss));
    CHECK((layout.chunks.back().loss && layout.chunks.back().mtp == 1));
    CHECK(layout.chunks[3].first_layer == 12);
    CHECK(layout.chunks[15].first_layer == 60);
    CHECK(layout.text() == "Et*4|(t*4|)*14tmL");
    check_pipeline_layout(layout, 61, 2);  // VP 8
    check_pipeline_layout(layout, 61, 4);  // VP 4
  }
}

TEST_CASE("chunks may hold the loss or multi-token prediction alone, or nothing") {
  const PipelineLayout layout = parse_pipeline_layout("Et*3|(tt|)*29m|L");
  REQUIRE(layout.chunks.size() == 32);  // VP 2 at PP 16
  CHECK(layout.layers() == 61);
  check_pipeline_layout(layout, 61, 16);
  // Rank 0 holds chunks 0 and 16: the embedding and 5 layers. Rank 14 ends with the MTP, rank 15
  // with the loss alone.
  CHECK(layout.chunks[0].embedding);
  CHECK(layout.chunks[0].layers + layout.chunks[16].layers == 5);
  CHECK((layout.chunks[30].layers == 0 && layout.chunks[30].mtp == 1));
  CHECK((layout.chunks[31].layers == 0 && layout.chunks[31].loss));
  CHECK(layers_of(parse_pipeline_layout("E||tt|L")) == std::vector<int>{0, 0, 2, 0});
  CHECK(layers_of(parse_pipeline_layout("E((t|)*2)*2tL")) == std::vector<int>{1, 1, 1, 1, 1});
}

TEST_CASE("a mistake in a layout is named with its place") {
  check_refused("", "the end", "it is empty");
  check_refused("Et*4|x*4L", "character 6, 'x'", "not a symbol");
  check_refused("Et*L", "character 3, '*'", "a whole number");
  check_refused("Et*0L", "character 3, '*'", "a whole number");
  check_refused("Et*99999999999999999999L", "character 3, '*'", "a whole number");
  check_refused("E(t|tL", "character 2, '('", "not closed");
  check_refused("Et)L", "character 3, ')'", "no '('");
  check_refused("t*4|L", "character 1, 't'", "first symbol is the embedding");
  check_refused("|Et|L", "character 1, '|'", "first symbol is the embedding");
}

TEST_CASE("a layout puts its symbols in order") {
  check_refused("Et|EtL", "character 4, 'E'", "there once");
  check_refused("Et|LtL", "character 5, 't'", "nothing comes after the loss");
  check_refused("EtL|", "character 4, '|'", "nothing comes after the loss");
  check_refused("Et|t", "the end", "the last chunk ends with the loss");
  check_refused("Em|tL", "character 2, 'm'", "after the decoder layers");
  check_refused("Et|mtL", "character 5, 't'", "before 'm'");
  check_refused("E(t*100000)*100000L", "character", "more than 100000 symbols");
  check_refused("E" + std::string(17, '(') + "t" + std::string(17, ')') + "L", "character 18",
                "nested");
}

TEST_CASE("a layout has the model's layers, whole ranks and MTP on a last chunk") {
  const auto message = [](const char* text, int layers, int ranks) -> std::string {
    try {
      check_pipeline_layout(parse_pipeline_layout(text), layers, ranks);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(message("Et*4|t*4L", 8, 2).empty());
  CHECK_THAT(message("Et*4|t*4L", 7, 2), ContainsSubstring("8 decoder layers"));
  CHECK_THAT(message("Et*4|t*4L", 9, 2), ContainsSubstring("the model has 9"));
  CHECK_THAT(message("Et|t|tL", 3, 2), ContainsSubstring("3 chunks do not divide"));
  CHECK_THAT(message("Et|tm|t|tL", 4, 2), ContainsSubstring("before 'm'"));
  // Chunk 2 of 4 is the first of rank 1; chunk 3 the last of rank 0.
  CHECK_THAT(message("Ett|m||L", 2, 2), ContainsSubstring("chunk 2 of 4"));
  CHECK_THAT(message("Ett||m|L", 2, 2), ContainsSubstring("not on rank 0"));
  CHECK(message("Ett|||mL", 2, 2).empty());
  CHECK(message("EttmL", 2, 1).empty());
}

TEST_CASE("layers are divided evenly, or nearly") {
  const PipelineLayout even = even_pipeline_layout(12, 4, 1);
  CHECK(layers_of(even) == std::vector<int>{3, 3, 3, 3});
  CHECK(even.chunks[2].first_layer == 6);
  CHECK(even.text() == "Ettt|ttt|ttt|tttmL");
  // 61 = 13 x 4 + 3 x 3
  const PipelineLayout nearly = nearly_even_pipeline_layout(61, 16);
  CHECK(nearly.text() == "Et*4|(t*4|)*12ttt|ttt|tttL");
  CHECK(parse_pipeline_layout(nearly.text()).layers() == 61);
  CHECK(even_pipeline_layout(5, 1).text() == "Et*5L");
}

TEST_CASE("uneven stages are those of Megatron-Core") {
  const auto text = [](const UnevenStages& stages) {
    return uneven_pipeline_layout(layers_of_chunks(stages), 1).text();
  };
  UnevenStages stages;
  stages.layers = 92;
  stages.ranks = 8;
  stages.first = stages.last = 10;  // 92 = 10 + 6 x 12 + 10
  CHECK(text(stages) == "Et*10|(t*12|)*6t*10mL");
  stages.virtual_stages = 2;  // halves of each rank's layers
  CHECK(text(stages) == "Et*5|(t*6|)*6t*5|t*5|(t*6|)*6t*5mL");
  stages.virtual_stages = 4;
  CHECK_THROWS_AS(text(stages), UsageError);  // 10 / 4
  stages.virtual_stages = 1;
  stages.last.reset();  // 82 / 7
  CHECK_THROWS_AS(text(stages), UsageError);
  stages.first.reset();
  stages.layers = 94;
  stages.counts_embedding = stages.counts_loss = true;  // 96 / 8
  CHECK(text(stages) == "Et*11|(t*12|)*6t*11mL");
  stages.virtual_stages = 12;
  CHECK(uneven_pipeline_layout(layers_of_chunks(stages)).layers() == 94);
  CHECK(layers_of_chunks(stages).front() == 0);
}

TEST_CASE("two uneven stages leave no layer over") {
  UnevenStages stages;
  stages.layers = 20;
  stages.ranks = 2;
  stages.first = 8;
  stages.last = 12;
  CHECK(layers_of_chunks(stages) == std::vector<int>{8, 12});
  stages.last = 11;
  CHECK_THROWS_AS(layers_of_chunks(stages), UsageError);
}
